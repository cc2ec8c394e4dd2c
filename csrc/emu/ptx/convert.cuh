// The emulation of csrc/cuda/ptx/convert.cuh.
#pragma once

#include <cuda_runtime.h>

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

inline float exp2_fast(float x) { return std::exp2(x); }

}  // namespace cudaprefill::ptx
