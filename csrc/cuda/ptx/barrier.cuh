// Barriers of a part of the block.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace cudaprefill::ptx {

// Waits for `count` threads, whole warps, at barrier `id`: 1 to 15, for 0 is that of __syncthreads().
__device__ __forceinline__ void named_barrier_sync(uint32_t id, uint32_t count) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(count) : "memory");
}

// Counts as having come, without waiting.
__device__ __forceinline__ void named_barrier_arrive(uint32_t id, uint32_t count) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(count) : "memory");
}

}  // namespace cudaprefill::ptx
