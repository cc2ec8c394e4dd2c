// Conversions between float32 and pairs of 16-bit or e4m3 numbers, round to nearest even, and the fast exponential.
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

// Both products of two pairs, each rounded; subnormal numbers are kept.
template <class Element>
__device__ __forceinline__ uint32_t multiply_pairs(uint32_t a, uint32_t b);

template <>
__device__ __forceinline__ uint32_t multiply_pairs<BFloat16>(uint32_t a, uint32_t b) {
  uint32_t product;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(product) : "r"(a), "r"(b), "r"(0x80008000u));  // + -0
  return product;
}

template <>
__device__ __forceinline__ uint32_t multiply_pairs<Half>(uint32_t a, uint32_t b) {
  uint32_t product;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}

// Byte i of the result is the byte of `bytes` that the hexadecimal digit i of `selector` names, digit 0 the last.
__device__ __forceinline__ uint32_t permute_bytes(uint32_t bytes, uint32_t selector) {
  uint32_t permuted;
  asm("prmt.b32 %0, %1, 0, %2;" : "=r"(permuted) : "r"(bytes), "r"(selector));
  return permuted;
}

// Whether the device has the next two (sm_89 and later); elsewhere float8.cuh does without.
__device__ __forceinline__ constexpr bool converts_float8() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  return true;
#else
  return false;
#endif
}

// Two e4m3 numbers in the lower 16 bits, exactly.
__device__ __forceinline__ uint32_t float8_to_half(uint32_t pair) {
  uint32_t halves;
  asm("{\n.reg .b16 p;\ncvt.u16.u32 p, %1;\ncvt.rn.f16x2.e4m3x2 %0, p;\n}" : "=r"(halves) : "r"(pair));
  return halves;
}

// To two e4m3 numbers in the lower 16 bits; what is above 448 becomes 448.
__device__ __forceinline__ uint32_t pack_float8(float low, float high) {
  uint32_t pair;
  asm("{\n.reg .b16 p;\ncvt.rn.satfinite.e4m3x2.f32 p, %1, %2;\ncvt.u32.u16 %0, p;\n}"
      : "=r"(pair)
      : "f"(high), "f"(low));
  return pair;
}

// 2^x, with an error of two units in the last place; 2^-inf is 0.
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace cudaprefill::ptx
