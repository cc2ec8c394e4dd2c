// Where a slot of the paged cache lies.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "csrc/ops/params.h"

namespace cudaprefill {

// The offset, in elements, of the row of one KV head at a slot: slot = block * block_size + place in the block.
__device__ __forceinline__ int64_t slot_offset(const PagedCache& cache, int64_t slot, int block_size, int head) {
  const int64_t block = slot / block_size;
  return block * cache.block_stride + head * cache.head_stride + (slot - block * block_size) * cache.slot_stride;
}

}  // namespace cudaprefill
