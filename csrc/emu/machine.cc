#include "csrc/emu/machine.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <sstream>
#include <utility>

#include "csrc/emu/fault.h"

namespace cudaprefill::emu {
namespace {

void check_launch(const std::string& name, int compute_capability, Index3 grid, unsigned threads, size_t shared_bytes) {
  const auto limits = LaunchLimits::of(compute_capability);
  std::ostringstream text;
  const auto require = [&](const char* what, uint64_t value, uint64_t least, uint64_t most) {
    if (value < least || value > most) text << "; " << what << " is " << value << ", not in " << least << ".." << most;
  };
  require("grid.x", grid.x, 1, limits.max_grid_x);
  require("grid.y", grid.y, 1, limits.max_grid_yz);
  require("grid.z", grid.z, 1, limits.max_grid_yz);
  require("the block size", threads, 1, limits.max_threads);
  require("shared memory", shared_bytes, 0, limits.max_shared_bytes);
  if (const std::string wrong = text.str(); !wrong.empty()) throw Fault(name + ": invalid launch" + wrong);
}

// {0, 1, 2, 3, 8} -> "0-3, 8"
std::string ranges(const std::vector<unsigned>& ranks) {
  std::ostringstream text;
  for (size_t i = 0; i < ranks.size();) {
    size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    text << (i ? ", " : "") << ranks[i];
    if (last > i) text << "-" << ranks[last];
    i = last + 1;
  }
  return text.str();
}

}  // namespace

std::string short_location(const std::source_location& where) {
  std::string file = where.file_name();
  file = file.substr(file.find_last_of('/') + 1);
  return file + ":" + std::to_string(where.line());
}

Machine& Machine::instance() {
  static Machine machine;
  return machine;
}

void Machine::launch(const std::string& name, Index3 grid, unsigned threads, size_t shared_bytes,
                     std::function<void()> kernel) {
  check_launch(name, compute_capability_, grid, threads, shared_bytes);
  if (stream_.is_empty()) random_.seed(seed_);
  ++counters_.launches;
  counters_.blocks += uint64_t{grid.x} * grid.y * grid.z;
  stream_.add({name, grid, threads, shared_bytes, std::move(kernel), launches_are_programmatic()}, random_);
}

void Machine::precede_with(std::function<void()> kernel) {
  random_.seed(seed_);
  stream_.add({"the kernel before", {}, 1, 0, std::move(kernel), false}, random_);
}

void Machine::begin_block(ThreadBlock& block, Index3 index) {
  const Grid& grid = stream_.grid();
  block.reset(index, grid.threads, grid.shared_bytes);
  for (Thread& thread : block.threads) {
    thread.fiber = std::make_unique<Fiber>([this, &grid, &thread] {
      try {
        grid.kernel();
      } catch (const std::exception&) {
        failure_ = std::current_exception();
      }
      thread.state = Thread::State::kDone;
    });
  }
}

bool Machine::run_block(ThreadBlock& block) {
  block_ = &block;
  auto& threads = block.threads;
  block.waits_for_grids = false;
  if (stream_.grid_ahead_is_complete()) {
    for (Thread& thread : threads) {
      if (thread.state == Thread::State::kAtKernelBefore) thread.state = Thread::State::kReady;
    }
  }
  std::vector<unsigned> ready;
  for (;;) {
    ready.clear();
    bool all_done = true;
    for (unsigned warp = 0; warp < block.num_warps(); ++warp) {
      bool warp_ready = false;
      for (unsigned rank = warp * kWarpSize; rank < std::min<size_t>(threads.size(), (warp + 1) * kWarpSize); ++rank) {
        warp_ready |= threads[rank].state == Thread::State::kReady;
        all_done &= threads[rank].state == Thread::State::kDone;
        block.waits_for_grids |= threads[rank].state == Thread::State::kAtKernelBefore;
      }
      if (warp_ready) ready.push_back(warp);
    }
    if (all_done) {
      check_end_of_block();
      return true;
    }
    if (ready.empty()) {
      if (block.tensor_copies.land_one(*this)) continue;
      if (block.waits_for_grids) return false;
      fail_block("deadlock: " + describe_waiting());
    }
    run_warp(ready[random_() % ready.size()]);
    if (std::exchange(gives_way_, false)) {
      block.waits_for_grids = false;
      return false;
    }
  }
}

void Machine::check_end_of_block() {
  for (const std::string& left :
       {block_->tensor_copies.unfinished(), block_->products.unfinished(), block_->registers.disagreement()}) {
    if (!left.empty()) fail_block(left);
  }
}

// Runs one warp until no lane of it can go on.
void Machine::run_warp(unsigned warp) {
  const unsigned first = warp * kWarpSize;
  auto& threads = block_->threads;
  const unsigned last = std::min(static_cast<unsigned>(threads.size()), first + kWarpSize);
  for (bool progress = true; progress;) {
    progress = false;
    for (unsigned rank = first; rank < last; ++rank) {
      if (threads[rank].state != Thread::State::kReady) continue;
      progress = true;
      current_ = &threads[rank];
      current_->fiber->resume();
      if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
      if (gives_way_) return;
    }
  }
}

void Machine::wait(Thread::State state, std::source_location where) {
  Thread& thread = *current_;
  thread.state = state;
  thread.where = where;
  thread.fiber->suspend();
}

void Machine::warp_operation(const char* name, uint32_t mask, void* data, WarpFunction execute,
                             std::source_location where) {
  Thread& thread = *current_;
  WarpOperation& operation = block_->warp_operations[thread.warp()];
  const uint32_t lane_bit = 1u << thread.lane();
  if (!(mask & lane_bit)) fail(std::string(name) + ": the calling lane is not in its own mask", where);
  if (operation.arrived == 0) {
    operation = {name, mask, 0, where, {}};
  } else if (operation.mask != mask || std::string(operation.name) != name) {
    fail(std::string("divergent warp: ") + name + " here, while other lanes wait in " + operation.name + " at " +
             short_location(operation.where),
         where);
  }
  operation.arrived |= lane_bit;
  operation.lanes[thread.lane()] = data;
  if (operation.arrived != mask) {
    wait(Thread::State::kInWarpOperation, where);
    return;
  }
  execute(*this, operation.lanes);
  operation.arrived = 0;
  for (unsigned lane = 0; lane < kWarpSize; ++lane) {
    if ((mask >> lane & 1) && lane != thread.lane()) {
      block_->threads[thread.warp() * kWarpSize + lane].state = Thread::State::kReady;
    }
  }
}

void Machine::join_warp(uint32_t mask) {
  std::vector<unsigned> ranks;
  for (unsigned lane = 0; lane < kWarpSize; ++lane) {
    if (mask >> lane & 1) ranks.push_back(current_->warp() * kWarpSize + lane);
  }
  join(ranks);
}

void Machine::join(const std::vector<unsigned>& ranks) {
  VectorClock joined(clock_size(), 0);
  for (const unsigned rank : ranks) {
    const VectorClock& clock = block_->threads[rank].clock;
    for (size_t i = 0; i < joined.size(); ++i) joined[i] = std::max(joined[i], clock[i]);
  }
  for (const unsigned rank : ranks) {
    block_->threads[rank].clock = joined;
    ++block_->threads[rank].clock[rank];
  }
}

void Machine::barrier(unsigned id, unsigned count, bool wait_for_others, std::source_location where) {
  Thread& thread = *current_;
  if (id >= kNamedBarriers) fail("barrier " + std::to_string(id) + " does not exist", where);
  if (count == 0 || count % kWarpSize != 0 || count > block_->threads.size()) {
    if (count != block_->threads.size()) {
      fail("barrier " + std::to_string(id) + " cannot wait for " + std::to_string(count) + " of " +
               std::to_string(block_->threads.size()) + " threads: not whole warps of the block",
           where);
    }
  }
  Barrier& barrier = block_->barriers[id];
  if (barrier.arrived.empty()) {
    barrier.expected = count;
    barrier.where = where;
  } else if (barrier.expected != count) {
    fail("barrier " + std::to_string(id) + " is asked to wait for " + std::to_string(count) + " threads here and for " +
             std::to_string(barrier.expected) + " at " + short_location(barrier.where),
         where);
  } else if (id == 0 &&
             (barrier.where.line() != where.line() || std::string(barrier.where.file_name()) != where.file_name())) {
    std::vector<unsigned> others = barrier.arrived;
    std::sort(others.begin(), others.end());
    fail("divergent barrier: __syncthreads here, while threads " + ranges(others) + " are in the one at " +
             short_location(barrier.where),
         where);
  }
  barrier.arrived.push_back(thread.rank);
  barrier.clock.resize(clock_size(), 0);
  for (size_t i = 0; i < barrier.clock.size(); ++i) barrier.clock[i] = std::max(barrier.clock[i], thread.clock[i]);
  ++thread.clock[thread.rank];  // what it does from now on is not seen by those who wait
  thread.barrier = id;
  if (barrier.arrived.size() < barrier.expected) {
    if (wait_for_others) wait(Thread::State::kAtBarrier, where);
    return;
  }
  for (const unsigned rank : barrier.arrived) {
    Thread& other = block_->threads[rank];
    const bool waits = other.state == Thread::State::kAtBarrier && other.barrier == id;
    if (waits) other.state = Thread::State::kReady;
    if (!waits && !(rank == thread.rank && wait_for_others)) continue;
    for (size_t i = 0; i < other.clock.size(); ++i) other.clock[i] = std::max(other.clock[i], barrier.clock[i]);
  }
  barrier.arrived.clear();
  barrier.clock.clear();
}

void Machine::wait_at_mbarrier(uint32_t address, uint32_t parity, std::source_location where) {
  Thread& thread = *current_;
  for (;;) {
    Mbarrier& mbarrier = block_->mbarriers.at(*this, address, "mbarrier.try_wait", where);
    if (mbarrier.has_ended(parity)) {
      for (size_t i = 0; i < thread.clock.size(); ++i) thread.clock[i] = std::max(thread.clock[i], mbarrier.ended[i]);
      return;
    }
    thread.mbarrier = address;
    thread.parity = parity;
    wait(Thread::State::kAtMbarrier, where);
  }
}

void Machine::wake_at_mbarrier(const Mbarrier& mbarrier) {
  for (Thread& thread : block_->threads) {
    if (thread.state == Thread::State::kAtMbarrier && thread.mbarrier == mbarrier.address &&
        mbarrier.has_ended(thread.parity)) {
      thread.state = Thread::State::kReady;
    }
  }
}

void Machine::set_warp_state(unsigned warp, Thread::State from, Thread::State to) {
  for (Thread& thread : block_->threads) {
    if (thread.warp() == warp && thread.state == from) thread.state = to;
  }
}

void Machine::change_registers(unsigned count, bool increase, std::source_location where) {
  require_hopper("setmaxnreg", where);
  struct Request {
    unsigned count;
    bool increase;
    std::source_location where;
  } request{count, increase, where};
  constexpr uint32_t kFullWarp = 0xffffffff;
  warp_operation(
      increase ? "setmaxnreg.inc" : "setmaxnreg.dec", kFullWarp, &request,
      [](Machine& machine, const auto& lanes) {
        const auto& wanted = *static_cast<Request*>(lanes[0]);
        const std::string wrong = machine.registers().request(machine.current_->warp(), wanted.count, wanted.increase);
        if (!wrong.empty()) machine.fail(wrong, wanted.where);
      },
      where);
  const unsigned warp = current_->warp();
  for (const unsigned served : block_->registers.serve()) {
    set_warp_state(served, Thread::State::kWantsRegisters, Thread::State::kReady);
  }
  while (block_->registers.is_waiting(warp)) wait(Thread::State::kWantsRegisters, where);
}

void Machine::wait_for_kernel_before(std::source_location where) {
  while (!stream_.grid_ahead_is_complete()) wait(Thread::State::kAtKernelBefore, where);
}

// The block stops here, so that the next grid begins as early as it may.
void Machine::let_next_kernel_begin() {
  if (block_->has_triggered) return;
  block_->has_triggered = true;
  if (!stream_.has_dependent()) return;
  gives_way_ = true;
  current_->fiber->suspend();
}

void Machine::require_hopper(const char* instruction, std::source_location where) {
  if (compute_capability_ < 90) {
    fail(std::string(instruction) + " on a device of compute capability " + std::to_string(compute_capability_ / 10) +
             "." + std::to_string(compute_capability_ % 10),
         where);
  }
}

void Machine::fail(const std::string& what, std::source_location where) {
  std::ostringstream text;
  text << stream_.grid().name << ": block (" << block_->index.x << ", " << block_->index.y << ", " << block_->index.z
       << "), thread " << current_->rank << ", " << short_location(where) << ": " << what;
  throw Fault(text.str());
}

void Machine::fail_block(const std::string& what) {
  std::ostringstream text;
  text << stream_.grid().name << ": block (" << block_->index.x << ", " << block_->index.y << ", " << block_->index.z
       << "): " << what;
  throw Fault(text.str());
}

std::string Machine::describe_waiting() const {
  std::map<std::string, std::vector<unsigned>> groups;
  for (const Thread& thread : block_->threads) {
    std::string where = "have ended";
    if (thread.state == Thread::State::kAtBarrier) {
      where = "wait at barrier " + std::to_string(thread.barrier) + " (" + short_location(thread.where) + ")";
    } else if (thread.state == Thread::State::kInWarpOperation) {
      where = std::string("wait for their warp in ") + block_->warp_operations[thread.warp()].name + " (" +
              short_location(thread.where) + ")";
    }
    if (thread.state == Thread::State::kAtMbarrier) {
      where = "wait at " + block_->mbarriers.describe(thread.mbarrier, thread.parity) + " (" +
              short_location(thread.where) + ")";
    } else if (thread.state == Thread::State::kAtKernelBefore) {
      where = "wait for the kernel before (" + short_location(thread.where) + ")";
    } else if (thread.state == Thread::State::kWantsRegisters) {
      where = "wait for " + block_->registers.describe(thread.warp()) + " (" + short_location(thread.where) + ")";
    }
    groups[where].push_back(thread.rank);
  }
  std::string text;
  for (const auto& [where, ranks] : groups)
    text += (text.empty() ? "threads " : "; threads ") + ranges(ranks) + " " + where;
  return text;
}

}  // namespace cudaprefill::emu
