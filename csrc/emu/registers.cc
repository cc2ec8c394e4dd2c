#include "csrc/emu/registers.h"

#include <algorithm>

namespace cudaprefill::emu {
namespace {

constexpr unsigned kWarpThreads = 32;
constexpr unsigned kOfMultiprocessor = 65536;
constexpr unsigned kMostAtLaunch = 255;
constexpr unsigned kUnit = 8, kLeast = 24, kMost = 256;
constexpr unsigned kWarpsOfGroup = 4;

}  // namespace

void RegisterPool::reset(unsigned num_threads) {
  // As the compiler does it for one block of that many threads a multiprocessor.
  const unsigned count = std::min(kMostAtLaunch, kOfMultiprocessor / num_threads) / kUnit * kUnit;
  warps_.assign((num_threads + kWarpThreads - 1) / kWarpThreads, {count, 0, 0});
  free_ = 0;
}

std::string RegisterPool::request(unsigned index, unsigned count, bool increase) {
  Warp& warp = warps_[index];
  if (count % kUnit != 0 || count < kLeast || count > kMost) {
    return "setmaxnreg: " + std::to_string(count) + " is not a multiple of 8 from 24 to 256";
  }
  if (increase ? count < warp.count : count > warp.count) {
    return std::string("setmaxnreg: ") + (increase ? "an increase" : "a decrease") + " from " +
           std::to_string(warp.count) + " to " + std::to_string(count) + " registers";
  }
  if (warps_.size() % kWarpsOfGroup != 0) return "setmaxnreg in a block that is not made of whole warpgroups";
  ++warp.changes;
  if (increase) {
    warp.wanted = count;
  } else {
    free_ += (warp.count - count) * kWarpThreads;
    warp.count = count;
  }
  return {};
}

unsigned RegisterPool::missing(const Warp& warp) const { return (warp.wanted - warp.count) * kWarpThreads; }

std::vector<unsigned> RegisterPool::serve() {
  std::vector<unsigned> served;
  for (unsigned i = 0; i < warps_.size(); ++i) {
    Warp& warp = warps_[i];
    if (warp.wanted == 0 || missing(warp) > free_) continue;
    free_ -= missing(warp);
    warp.count = warp.wanted;
    warp.wanted = 0;
    served.push_back(i);
  }
  return served;
}

std::string RegisterPool::describe(unsigned warp) const {
  return std::to_string(warps_[warp].wanted) + " registers a thread, for which " + std::to_string(free_) + " of " +
         std::to_string(missing(warps_[warp])) + " are free";
}

std::string RegisterPool::disagreement() const {
  for (unsigned i = 0; i < warps_.size(); ++i) {
    const Warp& first = warps_[i / kWarpsOfGroup * kWarpsOfGroup];
    if (warps_[i].count != first.count || warps_[i].changes != first.changes) {
      return "setmaxnreg: warp " + std::to_string(i) + " has " + std::to_string(warps_[i].count) +
             " registers, and the first of its warpgroup " + std::to_string(first.count);
    }
  }
  return {};
}

}  // namespace cudaprefill::emu
