// cp.async.bulk.tensor: boxes of a tensor in global memory, copied to shared memory by hardware of its own (sm_90).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "csrc/cuda/tensor_map.h"

namespace cudaprefill::ptx {

// Copies the box that begins at `coordinates`, innermost first, and counts its bytes at the mbarrier. Elements outside
// the tensor come as zeros and are counted, too. `map` is a kernel parameter (__grid_constant__); the destination is a
// multiple of 128 bytes. Issued by one thread.
__device__ __forceinline__ void copy_tensor_async(uint32_t destination, const TensorMap& map,
                                                  const int (&coordinates)[5], uint32_t mbarrier) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(destination),
      "l"(&map), "r"(mbarrier), "r"(coordinates[0]), "r"(coordinates[1]), "r"(coordinates[2]), "r"(coordinates[3]),
      "r"(coordinates[4])
      : "memory");
}

// Fetches the map itself ahead of its first use.
__device__ __forceinline__ void prefetch_tensor_map(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

}  // namespace cudaprefill::ptx
