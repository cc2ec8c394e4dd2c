#include "csrc/emu/stack_pool.h"

#include <sys/mman.h>
#include <unistd.h>

#include <new>

namespace cudaprefill::emu {
namespace {

size_t page_bytes() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

}  // namespace

StackPool& StackPool::local() {
  static thread_local StackPool pool;
  return pool;
}

StackPool::~StackPool() { trim(0); }

void StackPool::trim(size_t most) {
  for (; free_.size() > most; free_.pop_back()) {
    munmap(static_cast<char*>(free_.back()) - page_bytes(), kStackBytes + page_bytes());
  }
}

void* StackPool::take() {
  if (!free_.empty()) {
    void* stack = free_.back();
    free_.pop_back();
    return stack;
  }
  void* mapped = mmap(nullptr, kStackBytes + page_bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED || mprotect(mapped, page_bytes(), PROT_NONE) != 0) throw std::bad_alloc();
  return static_cast<char*>(mapped) + page_bytes();
}

void StackPool::give_back(void* stack) { free_.push_back(stack); }

}  // namespace cudaprefill::emu
