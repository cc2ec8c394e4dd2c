// The registers of a block, as setmaxnreg moves them between warps.
//
// A block is launched with the same number for every thread, and that many in all is what its warps share from then on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace cudaprefill::emu {

class RegisterPool {
 public:
  void reset(unsigned num_threads);

  // A warp asks for another number a thread. Returns what is wrong with that. It may have to wait.
  std::string request(unsigned warp, unsigned count, bool increase);
  // Grants what the pool has; returns the warps that got theirs.
  std::vector<unsigned> serve();
  bool is_waiting(unsigned warp) const { return warps_[warp].wanted != 0; }

  // "240 registers a thread, for which 2304 of 9216 are free"
  std::string describe(unsigned warp) const;
  // At the end of a block: warps of one warpgroup that did not do the same.
  std::string disagreement() const;

 private:
  struct Warp {
    unsigned count = 0;
    unsigned wanted = 0;  // 0: nothing
    unsigned changes = 0;
  };
  unsigned missing(const Warp& warp) const;

  unsigned free_ = 0;
  std::vector<Warp> warps_;
};

}  // namespace cudaprefill::emu
