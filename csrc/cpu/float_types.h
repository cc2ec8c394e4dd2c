// The 16-bit and 8-bit float formats and their conversions in plain C++, for tails and for machines without vector
// conversions.
#pragma once

#include <bit>
#include <cstdint>

#include "csrc/ops/params.h"

namespace cudaprefill::cpu {

#define CUDAPREFILL_INLINE inline __attribute__((always_inline))

struct BFloat16 {
  uint16_t bits;
};

struct Float16 {
  uint16_t bits;
};

// e4m3: four bits of exponent, three of mantissa, no infinity; the largest number is 448.
struct Float8 {
  uint8_t bits;
};

CUDAPREFILL_INLINE float to_float(float value) { return value; }

CUDAPREFILL_INLINE float to_float(BFloat16 value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}

CUDAPREFILL_INLINE float to_float(Float16 value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000u) << 16;
  const uint32_t magnitude = value.bits & 0x7fffu;
  if (magnitude >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  // Exponent and mantissa land 112 too low in float32's exponent; a multiplication by 2^112 puts them right and
  // normalises the subnormals on the way.
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude << 13) * 0x1p112f));
}

// In the place of float16's numbers, those of e4m3 are 2^8 too small; the subnormals are subnormals there, too.
CUDAPREFILL_INLINE float to_float(Float8 value) {
  const uint16_t sign = static_cast<uint16_t>((value.bits & 0x80u) << 8);
  const uint32_t magnitude = value.bits & 0x7fu;
  if (magnitude == 0x7fu) return to_float(Float16{static_cast<uint16_t>(sign | 0x7e00u)});
  return to_float(Float16{static_cast<uint16_t>(sign | magnitude << 7)}) * 256.0f;
}

template <class T>
T from_float(float value);

template <>
CUDAPREFILL_INLINE float from_float<float>(float value) {
  return value;
}

// Round to nearest, ties to even; NaN stays NaN.
template <>
CUDAPREFILL_INLINE BFloat16 from_float<BFloat16>(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>(bits >> 16 | 0x40u)};
  return {static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16)};
}

template <>
CUDAPREFILL_INLINE Float16 from_float<Float16>(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {static_cast<uint16_t>(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu))};
  if (magnitude >= 0x477ff000u) return {static_cast<uint16_t>(sign | 0x7c00u)};  // 65520 and above round to infinity
  if (magnitude < 0x38800000u) {
    // Below 2^-14 the result is subnormal: adding 0.5 leaves its multiple of 2^-24, rounded, in the low bits.
    return {static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) & 0x7fffu))};
  }
  return {static_cast<uint16_t>(sign | ((magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1u)) >> 13))};
}

// Round to nearest, ties to even; what is above 448 becomes 448, and NaN stays NaN.
template <>
CUDAPREFILL_INLINE Float8 from_float<Float8>(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint8_t sign = static_cast<uint8_t>(bits >> 24 & 0x80u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {static_cast<uint8_t>(sign | 0x7fu)};
  if (magnitude >= 0x43e00000u) return {static_cast<uint8_t>(sign | 0x7eu)};
  if (magnitude < 0x3c800000u) {
    // Below 2^-6 the result is subnormal: adding 2^14 leaves its multiple of 2^-9, rounded, in the low bits.
    return {static_cast<uint8_t>(sign | (std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0x1p14f) & 0xffu))};
  }
  return {static_cast<uint8_t>(sign | ((magnitude - 0x3c000000u + 0x7ffffu + (magnitude >> 20 & 1u)) >> 20))};
}

// Calls body(T{}) with the element type of a dtype of activations or weights.
template <class Body>
CUDAPREFILL_INLINE void with_element_type(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::kFloat32:
      body(float{});
      return;
    case DType::kBFloat16:
      body(BFloat16{});
      return;
    case DType::kFloat16:
      body(Float16{});
      return;
    case DType::kFloat8:
      return;  // of caches alone
  }
}

// Calls body(Kv{}) with the element type of a cache.
template <class Body>
CUDAPREFILL_INLINE void with_cache_type(DType dtype, const Body& body) {
  if (dtype == DType::kFloat8) {
    body(Float8{});
  } else {
    with_element_type(dtype, body);
  }
}

// Calls body(T{}, Kv{}) with the element types of the activations and of the caches.
template <class Body>
CUDAPREFILL_INLINE void with_element_types(DType dtype, DType kv_dtype, const Body& body) {
  with_element_type(dtype, [&](auto t) { with_cache_type(kv_dtype, [&](auto kv) { body(t, kv); }); });
}

}  // namespace cudaprefill::cpu
