// Vec for any machine: 4 lanes by the vector extension of GCC and Clang, which becomes SSE2, NEON or the like. See
// simd.h.
#pragma once

#include <cmath>
#include <cstring>

#include "csrc/cpu/float_types.h"
#include "csrc/cpu/isa.h"

namespace cudaprefill::cpu::CUDAPREFILL_ISA {

typedef float FourFloats __attribute__((vector_size(16)));
typedef int32_t FourInts __attribute__((vector_size(16)));

struct Vec {
  static constexpr int kWidth = 4;
  FourFloats lanes;
};

CUDAPREFILL_INLINE Vec zero() { return {FourFloats{}}; }
CUDAPREFILL_INLINE Vec broadcast(float value) { return {FourFloats{value, value, value, value}}; }
CUDAPREFILL_INLINE Vec operator+(Vec a, Vec b) { return {a.lanes + b.lanes}; }
CUDAPREFILL_INLINE Vec operator-(Vec a, Vec b) { return {a.lanes - b.lanes}; }
CUDAPREFILL_INLINE Vec operator*(Vec a, Vec b) { return {a.lanes * b.lanes}; }
CUDAPREFILL_INLINE Vec operator/(Vec a, Vec b) { return {a.lanes / b.lanes}; }
CUDAPREFILL_INLINE Vec fma(Vec a, Vec b, Vec c) { return {a.lanes * b.lanes + c.lanes}; }
CUDAPREFILL_INLINE Vec max(Vec a, Vec b) { return {a.lanes > b.lanes ? a.lanes : b.lanes}; }
CUDAPREFILL_INLINE Vec min(Vec a, Vec b) { return {a.lanes < b.lanes ? a.lanes : b.lanes}; }

// To the nearest whole number, for |v| < 2^22: so large a number has no bits left for fractions.
CUDAPREFILL_INLINE Vec round(Vec v) {
  const Vec large = broadcast(0x1.8p23f);
  return v + large - large;
}

CUDAPREFILL_INLINE float sum(Vec v) { return v.lanes[0] + v.lanes[1] + (v.lanes[2] + v.lanes[3]); }
CUDAPREFILL_INLINE float largest(Vec v) {
  float most = v.lanes[0];
  for (int i = 1; i < Vec::kWidth; ++i) most = v.lanes[i] > most ? v.lanes[i] : most;
  return most;
}

CUDAPREFILL_INLINE void store_sums(float* to, Vec a, Vec b, Vec c, Vec d) {
  to[0] = sum(a);
  to[1] = sum(b);
  to[2] = sum(c);
  to[3] = sum(d);
}

CUDAPREFILL_INLINE void store_largest(float* to, Vec a, Vec b, Vec c, Vec d) {
  to[0] = largest(a);
  to[1] = largest(b);
  to[2] = largest(c);
  to[3] = largest(d);
}

CUDAPREFILL_INLINE void transpose(Vec (&rows)[Vec::kWidth]) {
  for (int i = 0; i < Vec::kWidth; ++i) {
    for (int j = 0; j < i; ++j) {
      const float kept = rows[i].lanes[j];
      rows[i].lanes[j] = rows[j].lanes[i];
      rows[j].lanes[i] = kept;
    }
  }
}

// v * 2^n for whole n, in two steps so that each factor is a normal number
CUDAPREFILL_INLINE Vec scale_by_power_of_two(Vec v, Vec n) {
  const FourInts whole = __builtin_convertvector(n.lanes, FourInts);
  const FourInts half = whole >> 1;
  const auto power = [](FourInts exponent) { return Vec{reinterpret_cast<FourFloats>((exponent + 127) << 23)}; };
  return v * power(half) * power(whole - half);
}

// `result` where v >= bound or v is NaN, else 0
CUDAPREFILL_INLINE Vec zero_below(Vec v, Vec bound, Vec result) {
  return {v.lanes < bound.lanes ? FourFloats{} : result.lanes};
}

template <class T>
CUDAPREFILL_INLINE Vec load_first(const T* from, int count) {
  Vec v = zero();
  for (int i = 0; i < count; ++i) v.lanes[i] = to_float(from[i]);
  return v;
}
template <class T>
CUDAPREFILL_INLINE void store_first(T* to, Vec v, int count) {
  for (int i = 0; i < count; ++i) to[i] = from_float<T>(v.lanes[i]);
}
template <class T>
CUDAPREFILL_INLINE Vec load(const T* from) {
  return load_first(from, Vec::kWidth);
}
template <class T>
CUDAPREFILL_INLINE void store(T* to, Vec v) {
  store_first(to, v, Vec::kWidth);
}
template <>
CUDAPREFILL_INLINE Vec load(const float* from) {
  Vec v;
  std::memcpy(&v.lanes, from, sizeof(v.lanes));
  return v;
}
template <>
CUDAPREFILL_INLINE void store(float* to, Vec v) {
  std::memcpy(to, &v.lanes, sizeof(v.lanes));
}

CUDAPREFILL_INLINE Vec broadcast(Float16 value) { return broadcast(to_float(value)); }

CUDAPREFILL_INLINE Vec load_signed_bytes(const int8_t* from) {
  Vec v;
  for (int i = 0; i < Vec::kWidth; ++i) v.lanes[i] = static_cast<float>(from[i]);
  return v;
}

class NibbleValues {
 public:
  CUDAPREFILL_INLINE NibbleValues(Vec scale, Vec offset) : scale_(scale), offset_(offset) {}
  CUDAPREFILL_INLINE Vec low(const uint8_t* bytes) const {
    return value([&](int i) { return bytes[i] & 15; });
  }
  CUDAPREFILL_INLINE Vec high(const uint8_t* bytes) const {
    return value([&](int i) { return bytes[i] >> 4; });
  }

 private:
  template <class Number>
  CUDAPREFILL_INLINE Vec value(const Number& number) const {
    Vec v;
    for (int i = 0; i < Vec::kWidth; ++i) v.lanes[i] = static_cast<float>(number(i));
    return fma(v, scale_, offset_);
  }
  Vec scale_, offset_;
};

}  // namespace cudaprefill::cpu::CUDAPREFILL_ISA
