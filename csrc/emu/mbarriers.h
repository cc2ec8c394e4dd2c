// The mbarriers of a block: phases, arrivals, bytes announced and come, and the clocks that they pass on.
#pragma once

#include <cstdint>
#include <source_location>
#include <string>
#include <vector>

#include "csrc/emu/shared_memory.h"

namespace cudaprefill::emu {

class Machine;

struct Mbarrier {
  uint32_t address;
  unsigned agent;  // the component of clocks that stands for the copies which count here
  uint32_t agent_time = 0;
  uint32_t arrivals;     // that end a phase
  uint32_t pending;      // still to come in this phase
  int64_t bytes = 0;     // announced and not yet come; below zero when they come first
  uint64_t phase = 0;    // phases that have ended
  VectorClock arriving;  // of those that have arrived in this phase
  VectorClock ended;     // of the phases that have ended: what a waiting thread sees
  unsigned init_thread;
  uint32_t init_time;
  bool fenced = false;  // the initialising thread has made it visible to the hardware that copies
  std::source_location where;

  // Whether the latest phase of that parity has ended: it is then not the parity of the current one.
  bool has_ended(uint32_t parity) const { return (phase & 1) != parity; }
};

class Mbarriers {
 public:
  static constexpr unsigned kMost = 48;  // of a block

  void reset(unsigned num_threads);

  void init(Machine& machine, uint32_t address, uint32_t arrivals, std::source_location where);
  void arrive(Machine& machine, uint32_t address, uint32_t expected_bytes, std::source_location where);
  // Bytes of a copy have come, in the name of the agent.
  void complete_bytes(Machine& machine, Mbarrier& mbarrier, uint32_t bytes, std::source_location where);
  void fence_init(unsigned thread);

  // Fails unless it is initialised, visibly to the calling thread.
  Mbarrier& at(Machine& machine, uint32_t address, const char* instruction, std::source_location where);

  // "the mbarrier at byte 0 for the end of a phase of parity 0; ended: 2 phases, this one lacks 1 of 2 arrivals ..."
  std::string describe(uint32_t address, uint32_t parity) const;

 private:
  Mbarrier* find(uint32_t address);
  void end_phase_if_complete(Machine& machine, Mbarrier& mbarrier);

  unsigned num_threads_ = 0;
  std::vector<Mbarrier> mbarriers_;
};

}  // namespace cudaprefill::emu
