// What a warpgroup, four warps from a multiple of four on, can do beside its products (sm_90a).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace cudaprefill::ptx {

// Gives registers back to the pool of the block, or waits until the pool has enough: all warps of a warpgroup, once
// each way. A multiple of 8 from 24 to 256.
template <uint32_t registers>
__device__ __forceinline__ void decrease_registers_to() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}
template <uint32_t registers>
__device__ __forceinline__ void increase_registers_to() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}

// The same value, but what the compiler derives from it is derived from here on and not kept from before.
__device__ __forceinline__ int anew(int value) {
  asm volatile("" : "+r"(value));
  return value;
}

// True in one lane of the warp, always the same.
__device__ __forceinline__ bool elect_one() {
  uint32_t elected;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      ".reg .b32 leader;\n"
      "elect.sync leader|p, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}"
      : "=r"(elected)::"memory");
  return elected != 0;
}

}  // namespace cudaprefill::ptx
