#include "csrc/emu/thread_block.h"

namespace cudaprefill::emu {

void ThreadBlock::reset(Index3 block_index, unsigned num_threads, size_t shared_bytes) {
  index = block_index;
  shared_memory.reset(shared_bytes, num_threads);
  mbarriers.reset(num_threads);
  tensor_copies.reset();
  products.reset(num_threads);
  registers.reset(num_threads);
  warp_operations.assign((num_threads + kWarpSize - 1) / kWarpSize, {});
  barriers = {};
  has_triggered = waits_for_grids = false;
  threads.resize(num_threads);
  for (unsigned rank = 0; rank < num_threads; ++rank) {
    Thread& thread = threads[rank];
    thread.rank = rank;
    thread.index = {rank, 0, 0};
    thread.state = Thread::State::kReady;
    thread.uncommitted_copies.clear();
    thread.copy_groups.clear();
    thread.clock.assign(num_threads + Mbarriers::kMost, 0);
    thread.clock[rank] = 1;
  }
}

}  // namespace cudaprefill::emu
