#include "csrc/emu/mbarriers.h"

#include <algorithm>
#include <sstream>

#include "csrc/emu/machine.h"

namespace cudaprefill::emu {
namespace {

constexpr uint32_t kMostArrivals = (1 << 20) - 1;  // the PTX ISA's range of both counts
constexpr int64_t kMostBytes = (1 << 20) - 1;
constexpr uint32_t kBytes = 8;

void join_into(VectorClock& to, const VectorClock& from) {
  for (size_t i = 0; i < to.size(); ++i) to[i] = std::max(to[i], from[i]);
}

}  // namespace

void Mbarriers::reset(unsigned num_threads) {
  num_threads_ = num_threads;
  mbarriers_.clear();
  mbarriers_.reserve(kMost);  // references to them stay valid
}

Mbarrier* Mbarriers::find(uint32_t address) {
  for (Mbarrier& mbarrier : mbarriers_) {
    if (mbarrier.address == address) return &mbarrier;
  }
  return nullptr;
}

void Mbarriers::init(Machine& machine, uint32_t address, uint32_t arrivals, std::source_location where) {
  machine.require_hopper("mbarrier.init", where);  // it exists from 8.0 on, but counts no bytes there
  if (find(address)) machine.fail("mbarrier.init: there is an mbarrier already", where);
  if (arrivals == 0 || arrivals > kMostArrivals) {
    machine.fail("mbarrier.init: " + std::to_string(arrivals) + " arrivals, not in 1.." + std::to_string(kMostArrivals),
                 where);
  }
  if (mbarriers_.size() == kMost) machine.fail("the emulation has no more mbarriers", where);
  const Accessor by = machine.accessor(where);
  const std::string wrong = machine.shared_memory().make_opaque(address, kBytes, by);
  if (!wrong.empty()) machine.fail("mbarrier.init: " + wrong, where);

  Mbarrier mbarrier{};
  mbarrier.address = address;
  mbarrier.agent = num_threads_ + static_cast<unsigned>(mbarriers_.size());
  mbarrier.arrivals = mbarrier.pending = arrivals;
  mbarrier.arriving.assign(by.clock->size(), 0);
  mbarrier.ended.assign(by.clock->size(), 0);
  mbarrier.init_thread = by.thread;
  mbarrier.init_time = (*by.clock)[by.thread];
  mbarrier.where = where;
  mbarriers_.push_back(std::move(mbarrier));
}

Mbarrier& Mbarriers::at(Machine& machine, uint32_t address, const char* instruction, std::source_location where) {
  Mbarrier* mbarrier = find(address);
  if (!mbarrier) {
    machine.fail(std::string(instruction) + ": there is no mbarrier at byte " +
                     std::to_string(static_cast<int64_t>(address) - SharedMemory::kBase) + " of shared memory",
                 where);
  }
  const Thread& thread = machine.current();
  if (thread.rank != mbarrier->init_thread && thread.clock[mbarrier->init_thread] < mbarrier->init_time) {
    machine.fail(std::string(instruction) + ": no barrier lies between this and mbarrier.init by thread " +
                     std::to_string(mbarrier->init_thread),
                 where);
  }
  return *mbarrier;
}

void Mbarriers::arrive(Machine& machine, uint32_t address, uint32_t expected_bytes, std::source_location where) {
  Mbarrier& mbarrier = at(machine, address, "mbarrier.arrive", where);
  Thread& thread = machine.current();
  mbarrier.bytes += expected_bytes;
  if (mbarrier.bytes > kMostBytes) machine.fail("mbarrier.arrive: more than 2^20 - 1 bytes are expected", where);
  if (mbarrier.pending == 0) {
    machine.fail("mbarrier.arrive: all " + std::to_string(mbarrier.arrivals) +
                     " arrivals of this phase have been, and it waits for bytes",
                 where);
  }
  join_into(mbarrier.arriving, thread.clock);
  ++thread.clock[thread.rank];  // what it does from now on is not seen by those who wait
  --mbarrier.pending;
  end_phase_if_complete(machine, mbarrier);
}

void Mbarriers::complete_bytes(Machine& machine, Mbarrier& mbarrier, uint32_t bytes, std::source_location where) {
  mbarrier.bytes -= bytes;
  if (mbarrier.bytes < -kMostBytes) machine.fail("more bytes come to an mbarrier than it can count", where);
  mbarrier.arriving[mbarrier.agent] = mbarrier.agent_time;
  end_phase_if_complete(machine, mbarrier);
}

void Mbarriers::end_phase_if_complete(Machine& machine, Mbarrier& mbarrier) {
  if (mbarrier.pending > 0 || mbarrier.bytes != 0) return;
  join_into(mbarrier.ended, mbarrier.arriving);
  mbarrier.pending = mbarrier.arrivals;
  ++mbarrier.phase;
  machine.wake_at_mbarrier(mbarrier);
}

void Mbarriers::fence_init(unsigned thread) {
  for (Mbarrier& mbarrier : mbarriers_) mbarrier.fenced |= mbarrier.init_thread == thread;
}

std::string Mbarriers::describe(uint32_t address, uint32_t parity) const {
  std::ostringstream text;
  text << "the mbarrier at byte " << address - SharedMemory::kBase << " for a phase of parity " << parity;
  for (const Mbarrier& mbarrier : mbarriers_) {
    if (mbarrier.address != address) continue;
    text << ", which is in phase " << mbarrier.phase << " and lacks " << mbarrier.pending << " of " << mbarrier.arrivals
         << " arrivals and " << mbarrier.bytes << " bytes";
  }
  return text.str();
}

}  // namespace cudaprefill::emu
