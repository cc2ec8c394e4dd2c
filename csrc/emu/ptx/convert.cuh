// The emulation of csrc/cuda/ptx/convert.cuh.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "csrc/cuda/element.cuh"

namespace cudaprefill::ptx {

template <class Element>
uint16_t round_to(float value);

template <>
inline uint16_t round_to<BFloat16>(float value) {
  if (std::isnan(value)) return 0x7fff;
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

template <>
inline uint16_t round_to<Half>(float value) {
  if (std::isnan(value)) return 0x7fff;
  return std::bit_cast<uint16_t>(static_cast<_Float16>(value));
}

template <class Element>
uint32_t pack(float low, float high) {
  return round_to<Element>(low) | uint32_t{round_to<Element>(high)} << 16;
}

template <class Element>
void unpack(uint32_t packed, float& low, float& high);

template <>
inline void unpack<BFloat16>(uint32_t packed, float& low, float& high) {
  low = std::bit_cast<float>(packed << 16);
  high = std::bit_cast<float>(packed & 0xffff0000u);
}

template <>
inline void unpack<Half>(uint32_t packed, float& low, float& high) {
  low = std::bit_cast<_Float16>(static_cast<uint16_t>(packed));
  high = std::bit_cast<_Float16>(static_cast<uint16_t>(packed >> 16));
}

template <class Element>
uint32_t multiply_pairs(uint32_t a, uint32_t b) {
  float a_low, a_high, b_low, b_high;
  unpack<Element>(a, a_low, a_high);
  unpack<Element>(b, b_low, b_high);
  return pack<Element>(a_low * b_low, a_high * b_high);
}

inline uint32_t permute_bytes(uint32_t bytes, uint32_t selector) {
  uint32_t permuted = 0;
  for (int i = 0; i < 4; ++i) permuted |= (bytes >> (selector >> 4 * i & 3) * 8 & 0xff) << 8 * i;
  return permuted;
}

inline bool converts_float8() { return emu::Machine::instance().compute_capability() >= 89; }

inline uint32_t float8_to_half(uint32_t pair) {
  const auto value = [](uint32_t bits) {
    const int exponent = bits >> 3 & 15, mantissa = bits & 7;
    if ((bits & 0x7f) == 0x7f) return std::nanf("");
    const float magnitude = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                          : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
    return (bits & 0x80) != 0 ? -magnitude : magnitude;
  };
  return pack<Half>(value(pair & 0xff), value(pair >> 8 & 0xff));
}

inline uint32_t pack_float8(float low, float high) {
  const auto bits = [](float value) -> uint32_t {
    const uint32_t sign = std::signbit(value) ? 0x80 : 0;
    if (std::isnan(value)) return 0x7f;
    const float magnitude = std::fmin(std::fabs(value), 448.0f);
    if (magnitude == 0) return sign;
    const int exponent =
        std::max(std::ilogb(magnitude), -6);  // of the numbers around it, which are 2^(exponent-3) apart
    const auto steps = static_cast<uint32_t>(std::nearbyint(std::ldexp(magnitude, 3 - exponent)));
    return sign | ((exponent + 6) * 8 + steps);
  };
  return bits(low) | bits(high) << 8;
}

inline float exp2_fast(float x) { return std::exp2(x); }

}  // namespace cudaprefill::ptx
