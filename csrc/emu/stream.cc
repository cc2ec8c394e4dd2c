#include "csrc/emu/stream.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "csrc/emu/device_memory.h"
#include "csrc/emu/machine.h"
#include "csrc/emu/stack_pool.h"

namespace cudaprefill::emu {

void Stream::add(Grid grid, std::mt19937_64& random) {
  grid.order.resize(uint64_t{grid.size.x} * grid.size.y * grid.size.z);
  std::iota(grid.order.begin(), grid.order.end(), uint64_t{0});
  std::shuffle(grid.order.begin(), grid.order.end(), random);
  grids_.push_back(std::move(grid));
}

void Stream::run(Machine& machine) {
  constexpr size_t kKeptStacks = 128;
  try {
    while (!grids_.empty()) step(machine);
    StackPool::local().trim(kKeptStacks);
  } catch (...) {
    if (is_early()) DeviceMemory::instance().show_writes();
    DeviceMemory::instance().forget_writes();
    grids_.clear();  // unwinds the fibers
    StackPool::local().trim(kKeptStacks);
    throw;
  }
}

// The latest grid that can do anything goes first; the first one is complete when no other can.
void Stream::step(Machine& machine) {
  for (size_t index = grids_.size(); index-- > 0;) {
    running_ = index;
    if (!may_begin(index)) continue;
    if (ThreadBlock* block = next_block(machine, grids_[index])) return run_block(machine, *block);
  }
  grids_.pop_front();
  DeviceMemory::instance().forget_writes();
}

// One that has not triggered yet before those that have: nothing is ahead of them that the next grid waits for.
ThreadBlock* Stream::next_block(Machine& machine, Grid& grid) {
  std::vector<ThreadBlock*> triggered;
  for (const auto& block : grid.resident) {
    if (block->waits_for_grids && !grid_ahead_is_complete()) continue;
    if (!block->has_triggered) return block.get();
    triggered.push_back(block.get());
  }
  // As many at once as there are multiprocessors, and as there are stacks for.
  constexpr unsigned kMostThreads = 4096;
  const auto multiprocessors = static_cast<unsigned>(std::max(1, machine.num_multiprocessors()));
  const unsigned most = std::min(multiprocessors, std::max(1u, kMostThreads / grid.threads));
  if (grid.begun < grid.order.size() && grid.resident.size() < most) {
    if (spare_.empty()) spare_.push_back(std::make_unique<ThreadBlock>());
    grid.resident.push_back(std::move(spare_.back()));
    spare_.pop_back();
    const uint64_t block = grid.order[grid.begun++];
    const Index3 index{static_cast<unsigned>(block % grid.size.x),
                       static_cast<unsigned>(block / grid.size.x % grid.size.y),
                       static_cast<unsigned>(block / grid.size.x / grid.size.y)};
    machine.begin_block(*grid.resident.back(), index);
    return grid.resident.back().get();
  }
  return triggered.empty() ? nullptr : triggered[machine.random()() % triggered.size()];
}

void Stream::run_block(Machine& machine, ThreadBlock& block) {
  Grid& grid = grids_[running_];
  const bool had_triggered = block.has_triggered;
  auto& memory = DeviceMemory::instance();
  memory.record_writes(!is_early() && has_dependent());
  if (is_early()) memory.hide_writes();
  const bool ended = machine.run_block(block);
  if (is_early()) memory.show_writes();
  if (!had_triggered && (block.has_triggered || ended)) ++grid.triggered;
  if (!ended) return;
  ++grid.ended;
  const auto own = [&](const auto& resident) { return resident.get() == &block; };
  const auto at = std::find_if(grid.resident.begin(), grid.resident.end(), own);
  spare_.push_back(std::move(*at));
  grid.resident.erase(at);
}

}  // namespace cudaprefill::emu
