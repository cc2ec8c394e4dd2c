// The stream of launches, and which thread block of which grid runs next.
//
// A grid of a programmatic launch may begin as soon as every block of the grid before it has called
// griddepcontrol.launch_dependents or has ended; griddepcontrol.wait holds its threads until that grid is complete.
// Both happen at the worst moment here: a grid begins as early as it may, and of what the grids ahead of it have
// written its blocks see nothing before their wait.
//
//     grid n      | begins ... triggers |                    | goes on ... is complete |
//     grid n + 1                        | begins ... waits   |                         | goes on
//
// So a read that comes before the wait finds what was there before, and a write that comes before it is lost or is read
// by those that it was to come after. The wait is for the grid ahead alone: if that one does not wait itself, the one
// ahead of it may be running still.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "csrc/emu/thread_block.h"

namespace cudaprefill::emu {

class Machine;

struct Grid {
  std::string name;
  Index3 size;
  unsigned threads;
  size_t shared_bytes;
  std::function<void()> kernel;
  bool programmatic;  // may begin before the grid ahead is complete

  std::vector<uint64_t> order = {};  // of the blocks
  size_t begun = 0, triggered = 0, ended = 0;
  std::vector<std::unique_ptr<ThreadBlock>> resident = {};

  bool lets_next_begin() const { return triggered == order.size(); }
  bool has_ended() const { return ended == order.size(); }
};

class Stream {
 public:
  // Its blocks run in no order that a kernel may rely on.
  void add(Grid grid, std::mt19937_64& random);
  void clear() { grids_.clear(); }
  bool is_empty() const { return grids_.empty(); }
  // Runs all grids to their end. Where one raises, the others are dropped.
  void run(Machine& machine);

  // --- of the block that runs ---
  const Grid& grid() const { return grids_[running_]; }
  bool grid_ahead_is_complete() const { return running_ != 1 && (running_ == 0 || grids_[running_ - 1].has_ended()); }
  // Whether grids ahead may still write.
  bool is_early() const { return running_ > 0; }
  // Whether a grid is there that may begin once this one lets it.
  bool has_dependent() const { return running_ + 1 < grids_.size() && grids_[running_ + 1].programmatic; }

 private:
  void step(Machine& machine);
  ThreadBlock* next_block(Machine& machine, Grid& grid);
  void run_block(Machine& machine, ThreadBlock& block);
  bool may_begin(size_t index) const {
    return index == 0 || (grids_[index].programmatic && grids_[index - 1].lets_next_begin());
  }

  // Oldest first. The first one leaves when it is complete: it has ended, and what it has written is there to see.
  std::deque<Grid> grids_;
  size_t running_ = 0;
  std::vector<std::unique_ptr<ThreadBlock>> spare_;  // for their memory
};

}  // namespace cudaprefill::emu
