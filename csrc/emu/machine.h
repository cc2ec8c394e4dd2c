// The emulated machine: runs grids block by block (stream.h says which next), a block as fibers, one a thread, grouped
// into warps of 32.
//
// A thread runs until it waits: for its warp (shuffle, vote, ldmatrix, mma, __syncwarp), at a barrier of the block, at
// an mbarrier, or for registers. A tensor copy lands when no thread can go on without one. Which warp goes on next is
// drawn from a seed, so a run is deterministic and another seed is another interleaving. A warp that is drawn runs as
// far as it can: what lacks a barrier is then soon far out of step.
#pragma once

#include <array>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <random>
#include <source_location>
#include <string>
#include <vector>

#include "csrc/emu/device_memory.h"
#include "csrc/emu/stream.h"
#include "csrc/emu/thread_block.h"

namespace cudaprefill::emu {

struct LaunchLimits {
  unsigned max_grid_x = 2147483647, max_grid_yz = 65535, max_threads = 1024;
  size_t max_shared_bytes;

  // 8.0 stands for all devices below 9.0, with what each of them offers a block.
  static LaunchLimits of(int compute_capability) {
    LaunchLimits limits{};
    limits.max_shared_bytes = (compute_capability >= 90 ? 227 : 99) * 1024;
    return limits;
  }
};

// Counted over all launches since the last reset.
struct Counters {
  uint64_t launches = 0;
  uint64_t blocks = 0;
  uint64_t matrix_loads = 0;           // 8x8 matrices that ldmatrix has read
  uint64_t matrix_load_conflicts = 0;  // of them, those with two rows in one bank group
  uint64_t products = 0;               // wgmma of a warp
  uint64_t tensor_copies = 0;
};

class Machine {
 public:
  static Machine& instance();

  // Settings of the device; they hold until changed.
  void set_seed(uint64_t seed) { seed_ = seed; }
  void set_num_multiprocessors(int n) { num_multiprocessors_ = n; }
  int num_multiprocessors() const { return num_multiprocessors_; }
  // 80 or 90: instructions of Hopper are faults below 90.
  void set_compute_capability(int capability) { compute_capability_ = capability; }
  int compute_capability() const { return compute_capability_; }
  Counters& counters() { return counters_; }

  // Whether kernels may begin before the one ahead is complete.
  bool launches_are_programmatic() const { return compute_capability_ >= 90; }
  // Puts a launch of `kernel` into the stream. Raises Fault if it is invalid.
  void launch(const std::string& name, Index3 grid, unsigned threads, size_t shared_bytes,
              std::function<void()> kernel);
  // Puts a kernel of one thread into the stream that is nobody's launch: it stands for what came before.
  void precede_with(std::function<void()> kernel);
  // Runs what is in the stream to its end. Raises Fault.
  void synchronise() { stream_.run(*this); }
  void drop_launches() { stream_.clear(); }

  // --- called by the stream ----------------------------------------------------------------------------------------
  void begin_block(ThreadBlock& block, Index3 index);
  // Until it has ended (true), waits for the grids ahead, or has let the next grid begin.
  bool run_block(ThreadBlock& block);

  // --- called by kernels, on a fiber -------------------------------------------------------------------------------
  Thread& current() { return *current_; }
  Index3 block_index() const { return block_->index; }
  Index3 grid_size() const { return stream_.grid().size; }
  unsigned num_threads() const { return static_cast<unsigned>(block_->threads.size()); }
  SharedMemory& shared_memory() { return block_->shared_memory; }
  Mbarriers& mbarriers() { return block_->mbarriers; }
  TensorCopies& tensor_copies() { return block_->tensor_copies; }
  WarpgroupProducts& products() { return block_->products; }
  RegisterPool& registers() { return block_->registers; }
  uint64_t seed() const { return seed_; }
  std::mt19937_64& random() { return random_; }

  // What the lanes of one warp do together. `data` is this lane's part; the last lane to come runs `execute` with the
  // parts of all (null for lanes outside the mask). Lanes that come with another name or mask are a fault.
  using WarpFunction = void (*)(Machine&, const std::array<void*, kWarpSize>& lanes);
  void warp_operation(const char* name, uint32_t mask, void* data, WarpFunction execute, std::source_location where);

  // Joins the clocks of the lanes: what one did before, the others see after.
  void join_warp(uint32_t mask);

  // Waits until the phase of that parity has ended.
  void wait_at_mbarrier(uint32_t address, uint32_t parity, std::source_location where);
  // Lets those go on that wait at the mbarrier for a phase which has ended.
  void wake_at_mbarrier(const Mbarrier& mbarrier);

  // setmaxnreg by the whole warp.
  void change_registers(unsigned count, bool increase, std::source_location where);

  // griddepcontrol.wait and .launch_dependents.
  void wait_for_kernel_before(std::source_location where);
  void let_next_kernel_begin();
  // Whether kernels ahead in the stream may still write what this block reads.
  bool is_early() const { return stream_.is_early(); }

  // Fails unless the device is of compute capability 9.0.
  void require_hopper(const char* instruction, std::source_location where);

  // Barrier 0 of all threads is __syncthreads(). `count` is the number of threads that make it complete.
  void barrier(unsigned id, unsigned count, bool wait, std::source_location where);

  // Raises Fault with the kernel, block, thread and line in front.
  [[noreturn]] void fail(const std::string& what, std::source_location where);

  Accessor accessor(std::source_location where, bool whole_warp = false) {
    return {current_->rank, whole_warp, &current_->clock, where};
  }

 private:
  void check_end_of_block();
  size_t clock_size() const { return block_->threads.size() + Mbarriers::kMost; }
  void run_warp(unsigned warp);
  void wait(Thread::State state, std::source_location where);
  void join(const std::vector<unsigned>& ranks);
  void set_warp_state(unsigned warp, Thread::State from, Thread::State to);
  [[noreturn]] void fail_block(const std::string& what);
  std::string describe_waiting() const;

  uint64_t seed_ = 0;
  int num_multiprocessors_ = 4;
  int compute_capability_ = 80;
  Counters counters_;

  Stream stream_;
  ThreadBlock* block_ = nullptr;  // that runs
  Thread* current_ = nullptr;
  bool gives_way_ = false;  // the block stops, though its threads could go on
  std::exception_ptr failure_;
  std::mt19937_64 random_;
};

}  // namespace cudaprefill::emu
