// The emulation of csrc/cuda/ptx/tensor_copy.cuh.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <source_location>

#include "csrc/cuda/tensor_map.h"

namespace cudaprefill::ptx {

inline void copy_tensor_async(uint32_t destination, const TensorMap& map, const int (&coordinates)[5],
                              uint32_t mbarrier, std::source_location where = std::source_location::current()) {
  auto& machine = emu::Machine::instance();
  machine.tensor_copies().issue(machine, destination, map, coordinates, mbarrier, where);
}

inline void prefetch_tensor_map(const TensorMap&) {}

}  // namespace cudaprefill::ptx
