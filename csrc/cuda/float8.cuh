// e4m3 numbers as others, exactly, and others as e4m3 numbers: where the device has no instruction, from their bits.
//
//     e4m3        s eeee mmm                       bias 7
//     float16     s 0eeee mmm0000000               bias 15: 2^8 too small
//     bfloat16    s 0000eeee mmm0000               bias 127: 2^120 too small
//
// In their new place numbers are too small by a power of two, subnormal ones as well, and a multiplication puts that
// right. What has all bits of exponent and mantissa set is NaN and gets the exponent of a NaN.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <ptx/convert.cuh>

#include "csrc/cuda/element.cuh"

namespace cudaprefill {

// Two numbers in the upper bytes of the halves of a register, whose lower bytes may hold anything, as a pair of
// Element.
template <class Element>
__device__ __forceinline__ uint32_t widen_float8(uint32_t upper_bytes);

template <>
__device__ __forceinline__ uint32_t widen_float8<BFloat16>(uint32_t upper_bytes) {
  const uint32_t magnitudes = upper_bytes >> 4 & 0x07f007f0u;
  const uint32_t nan = (magnitudes + 0x00100010u) & 0x08000800u;  // the lowest bit of its four more of exponent
  const uint32_t signs = upper_bytes & 0x80008000u;
  return ptx::multiply_pairs<BFloat16>(signs | magnitudes | ((nan << 4) - nan), 0x7b807b80u);
}

template <>
__device__ __forceinline__ uint32_t widen_float8<Half>(uint32_t upper_bytes) {
  if (ptx::converts_float8()) return ptx::float8_to_half(ptx::permute_bytes(upper_bytes, 0x0031));
  const uint32_t magnitudes = upper_bytes >> 1 & 0x3f803f80u;
  const uint32_t nan = (magnitudes + 0x00800080u) & 0x40004000u;  // its one more bit of exponent
  const uint32_t signs = upper_bytes & 0x80008000u;
  return ptx::multiply_pairs<Half>(signs | magnitudes | nan, 0x5c005c00u);
}

// Of four numbers that adjoin in memory, the first or the last two.
template <class Element>
__device__ __forceinline__ uint32_t widen_first_two(uint32_t numbers) {
  return widen_float8<Element>(ptx::permute_bytes(numbers, 0x1100));
}
template <class Element>
__device__ __forceinline__ uint32_t widen_last_two(uint32_t numbers) {
  return widen_float8<Element>(ptx::permute_bytes(numbers, 0x3322));
}

// Round to nearest, ties to even; what is above 448 becomes 448, and NaN stays NaN.
__device__ __forceinline__ uint32_t float8_bits(float value) {
  const uint32_t sign = __float_as_uint(value) >> 24 & 0x80u;
  const uint32_t magnitude = __float_as_uint(value) & 0x7fffffffu;
  // Below 2^-6 the result is subnormal: adding 2^14 leaves its multiple of 2^-9, rounded, in the low bits.
  const uint32_t subnormal = __float_as_uint(__uint_as_float(magnitude) + 16384.0f) & 0xffu;
  const uint32_t normal = (magnitude - 0x3c000000u + 0x7ffffu + (magnitude >> 20 & 1u)) >> 20;
  const uint32_t finite = magnitude < 0x3c800000u ? subnormal : magnitude < 0x43e00000u ? normal : 0x7eu;
  return sign | (magnitude > 0x7f800000u ? 0x7fu : finite);
}

// Four numbers as they adjoin in memory.
__device__ __forceinline__ uint32_t pack_four_float8(const float* values) {
  if (ptx::converts_float8()) {
    return ptx::pack_float8(values[0], values[1]) | ptx::pack_float8(values[2], values[3]) << 16;
  }
  return float8_bits(values[0]) | float8_bits(values[1]) << 8 | float8_bits(values[2]) << 16 |
         float8_bits(values[3]) << 24;
}

}  // namespace cudaprefill
