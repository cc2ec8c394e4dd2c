// cp.async: copies from global to shared memory that run while the thread goes on (sm_80 and later).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace cudaprefill::ptx {

// Copies 16 bytes past L1. Where `valid` is false, 16 zeros are written and the source is not read.
__device__ __forceinline__ void copy_async_16(uint32_t destination, const void* source, bool valid) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(destination), "l"(source),
               "r"(valid ? 16 : 0)
               : "memory");
}

// Closes the group of the copies issued since the last call. A group may be empty.
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most `pending` of this thread's latest groups are unfinished. The copies of other threads need a
// barrier after this.
template <int pending>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

}  // namespace cudaprefill::ptx
