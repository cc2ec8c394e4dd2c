// cp.async.bulk.tensor: what has been issued and has not landed yet, and how a box lies in shared memory.
#pragma once

#include <array>
#include <cstdint>
#include <source_location>
#include <string>
#include <vector>

#include "csrc/cuda/tensor_map.h"
#include "csrc/emu/shared_memory.h"

namespace cudaprefill::emu {

class Machine;

// The shared address of a 16-byte chunk of a box: bits 4.. exchanged by bits 7.. of the same address.
uint32_t swizzled(uint32_t address, TensorSwizzle swizzle);

class TensorCopies {
 public:
  void reset() { pending_.clear(); }

  void issue(Machine& machine, uint32_t destination, const TensorMap& map, const int (&coordinates)[5],
             uint32_t mbarrier, std::source_location where);

  // Lands one of the copies, drawn at random. Returns false if there is none.
  bool land_one(Machine& machine);

  // At the end of a block: what has not landed.
  std::string unfinished() const;

 private:
  struct Copy {
    uint32_t destination;
    TensorShape shape;
    std::array<int64_t, TensorShape::kMaxRank> first;  // element of the box
    uint32_t mbarrier;
    VectorClock clock;  // of the issuing thread
    std::source_location where;

    uint32_t num_chunks() const;
  };
  void land(Machine& machine, const Copy& copy);

  std::vector<Copy> pending_;
};

}  // namespace cudaprefill::emu
