// Conversions between float32 and pairs of 16-bit numbers, round to nearest even, and the fast exponential.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "csrc/cuda/element.cuh"

namespace cudaprefill::ptx {

// `low` goes into the lower half of the register, which is the lower address in memory.
template <class Element>
__device__ __forceinline__ uint32_t pack(float low, float high);

template <>
__device__ __forceinline__ uint32_t pack<BFloat16>(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

template <>
__device__ __forceinline__ uint32_t pack<Half>(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

template <class Element>
__device__ __forceinline__ void unpack(uint32_t packed, float& low, float& high);

template <>
__device__ __forceinline__ void unpack<BFloat16>(uint32_t packed, float& low, float& high) {
  low = __uint_as_float(packed << 16);
  high = __uint_as_float(packed & 0xffff0000u);
}

template <>
__device__ __forceinline__ void unpack<Half>(uint32_t packed, float& low, float& high) {
  asm("{\n.reg .b16 lo, hi;\nmov.b32 {lo, hi}, %2;\ncvt.f32.f16 %0, lo;\ncvt.f32.f16 %1, hi;\n}"
      : "=f"(low), "=f"(high)
      : "r"(packed));
}

// 2^x, with an error of two units in the last place; 2^-inf is 0.
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace cudaprefill::ptx
