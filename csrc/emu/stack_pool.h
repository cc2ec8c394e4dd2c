// Stacks for fibers, kept and used again, for a launch of a thousand blocks needs the same few hundred stacks each
// time.
#pragma once

#include <cstddef>
#include <vector>

namespace cudaprefill::emu {

class StackPool {
 public:
  static constexpr size_t kStackBytes = 64 * 1024;

  // The pool of this operating system thread.
  static StackPool& local();

  StackPool() = default;
  StackPool(const StackPool&) = delete;
  ~StackPool();

  // The lowest address of a free stack. The page below it is not mapped: an overflow crashes instead of corrupting.
  void* take();
  void give_back(void* stack);
  // Leaves so many free stacks at most: a process has room for some 30,000, and each module of kernels has its own
  // pool.
  void trim(size_t most);

 private:
  std::vector<void*> free_;
};

}  // namespace cudaprefill::emu
