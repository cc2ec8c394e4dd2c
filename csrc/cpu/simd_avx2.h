// Vec for AVX2 with FMA and F16C: 8 lanes. See simd.h.
#pragma once

#include <immintrin.h>

#include <cstring>

#include "csrc/cpu/float_types.h"
#include "csrc/cpu/isa.h"

namespace cudaprefill::cpu::CUDAPREFILL_ISA {

struct Vec {
  static constexpr int kWidth = 8;
  __m256 lanes;
};

CUDAPREFILL_INLINE Vec zero() { return {_mm256_setzero_ps()}; }
CUDAPREFILL_INLINE Vec broadcast(float value) { return {_mm256_set1_ps(value)}; }
CUDAPREFILL_INLINE Vec operator+(Vec a, Vec b) { return {_mm256_add_ps(a.lanes, b.lanes)}; }
CUDAPREFILL_INLINE Vec operator-(Vec a, Vec b) { return {_mm256_sub_ps(a.lanes, b.lanes)}; }
CUDAPREFILL_INLINE Vec operator*(Vec a, Vec b) { return {_mm256_mul_ps(a.lanes, b.lanes)}; }
CUDAPREFILL_INLINE Vec operator/(Vec a, Vec b) { return {_mm256_div_ps(a.lanes, b.lanes)}; }
CUDAPREFILL_INLINE Vec fma(Vec a, Vec b, Vec c) { return {_mm256_fmadd_ps(a.lanes, b.lanes, c.lanes)}; }
CUDAPREFILL_INLINE Vec max(Vec a, Vec b) { return {_mm256_max_ps(a.lanes, b.lanes)}; }
CUDAPREFILL_INLINE Vec min(Vec a, Vec b) { return {_mm256_min_ps(a.lanes, b.lanes)}; }
CUDAPREFILL_INLINE Vec round(Vec v) {
  return {_mm256_round_ps(v.lanes, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}

CUDAPREFILL_INLINE float sum(Vec v) {
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(v.lanes), _mm256_extractf128_ps(v.lanes, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}
CUDAPREFILL_INLINE float largest(Vec v) {
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(v.lanes), _mm256_extractf128_ps(v.lanes, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}

CUDAPREFILL_INLINE void store_sums(float* to, Vec a, Vec b, Vec c, Vec d) {
  const __m256 each = _mm256_hadd_ps(_mm256_hadd_ps(a.lanes, b.lanes), _mm256_hadd_ps(c.lanes, d.lanes));
  _mm_storeu_ps(to, _mm_add_ps(_mm256_castps256_ps128(each), _mm256_extractf128_ps(each, 1)));
}

CUDAPREFILL_INLINE void store_largest(float* to, Vec a, Vec b, Vec c, Vec d) {
  // Until each 128-bit lane holds a number of each vector.
  const __m256 ab = _mm256_max_ps(_mm256_unpacklo_ps(a.lanes, b.lanes), _mm256_unpackhi_ps(a.lanes, b.lanes));
  const __m256 cd = _mm256_max_ps(_mm256_unpacklo_ps(c.lanes, d.lanes), _mm256_unpackhi_ps(c.lanes, d.lanes));
  const __m256 all = _mm256_max_ps(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xee));
  _mm_storeu_ps(to, _mm_max_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1)));
}

// Pairs, then fours of 32-bit lanes are interleaved, then 128-bit lanes move to their places.
CUDAPREFILL_INLINE void transpose(Vec (&rows)[Vec::kWidth]) {
  __m256 pairs[8], fours[8];
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {
    pairs[i] = _mm256_unpacklo_ps(rows[i].lanes, rows[i + 1].lanes);
    pairs[i + 1] = _mm256_unpackhi_ps(rows[i].lanes, rows[i + 1].lanes);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {
    fours[i] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0x44);
    fours[i + 1] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0xee);
    fours[i + 2] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0x44);
    fours[i + 3] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0xee);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    rows[i].lanes = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x20);
    rows[i + 4].lanes = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x31);
  }
}

// v * 2^n for whole n, in two steps so that each factor is a normal number
CUDAPREFILL_INLINE Vec scale_by_power_of_two(Vec v, Vec n) {
  const __m256i whole = _mm256_cvtps_epi32(n.lanes);
  const __m256i half = _mm256_srai_epi32(whole, 1);
  const auto power = [](__m256i exponent) {
    return Vec{_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(exponent, _mm256_set1_epi32(127)), 23))};
  };
  return v * power(half) * power(_mm256_sub_epi32(whole, half));
}

// `result` where v >= bound or v is NaN, else 0
CUDAPREFILL_INLINE Vec zero_below(Vec v, Vec bound, Vec result) {
  return {_mm256_and_ps(_mm256_cmp_ps(v.lanes, bound.lanes, _CMP_NLT_UQ), result.lanes)};
}

CUDAPREFILL_INLINE __m256i first_lanes(int count) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

CUDAPREFILL_INLINE Vec widen(__m128i halves, BFloat16) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16))};
}
CUDAPREFILL_INLINE Vec widen(__m128i halves, Float16) { return {_mm256_cvtph_ps(halves)}; }

// Round to nearest, ties to even; NaN stays NaN.
CUDAPREFILL_INLINE __m128i narrow(Vec v, BFloat16) {
  const __m256i bits = _mm256_castps_si256(v.lanes);
  const __m256i high = _mm256_srli_epi32(bits, 16);
  const __m256i half = _mm256_add_epi32(_mm256_set1_epi32(0x7fff), _mm256_and_si256(high, _mm256_set1_epi32(1)));
  const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, half), 16);
  const __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v.lanes, v.lanes, _CMP_UNORD_Q));
  const __m256i chosen = _mm256_blendv_epi8(rounded, quiet, nan);
  return _mm_packus_epi32(_mm256_castsi256_si128(chosen), _mm256_extracti128_si256(chosen, 1));
}
CUDAPREFILL_INLINE __m128i narrow(Vec v, Float16) {
  return _mm256_cvtps_ph(v.lanes, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

CUDAPREFILL_INLINE Vec load(const float* from) { return {_mm256_loadu_ps(from)}; }
CUDAPREFILL_INLINE Vec load_first(const float* from, int count) {
  return {_mm256_maskload_ps(from, first_lanes(count))};
}
CUDAPREFILL_INLINE void store(float* to, Vec v) { _mm256_storeu_ps(to, v.lanes); }
CUDAPREFILL_INLINE void store_first(float* to, Vec v, int count) {
  _mm256_maskstore_ps(to, first_lanes(count), v.lanes);
}

template <class Half>
CUDAPREFILL_INLINE Vec load(const Half* from) {
  return widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)), Half{});
}
template <class Half>
CUDAPREFILL_INLINE Vec load_first(const Half* from, int count) {
  Half whole[Vec::kWidth] = {};
  std::memcpy(whole, from, count * sizeof(Half));
  return load(whole);
}
template <class Half>
CUDAPREFILL_INLINE void store(Half* to, Vec v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), narrow(v, Half{}));
}
template <class Half>
CUDAPREFILL_INLINE void store_first(Half* to, Vec v, int count) {
  Half whole[Vec::kWidth];
  store(whole, v);
  std::memcpy(to, whole, count * sizeof(Half));
}

// e4m3 in the place of float16's numbers: sign, four bits of exponent and three of mantissa, 2^8 too small. The lowest
// bit of the exponent that is then free becomes 1 where all others are, for a NaN: its exponent is full, too.
CUDAPREFILL_INLINE Vec widen(__m128i bytes, Float8) {
  const __m128i halves =
      _mm_and_si128(_mm_slli_epi16(_mm_cvtepi8_epi16(bytes), 7), _mm_set1_epi16(static_cast<int16_t>(0xbfff)));
  const __m128i nan = _mm_and_si128(_mm_add_epi16(halves, _mm_set1_epi16(0x80)), _mm_set1_epi16(0x4000));
  return {_mm256_mul_ps(_mm256_cvtph_ps(_mm_or_si128(halves, nan)), _mm256_set1_ps(256.0f))};
}

// As from_float<Float8> of float_types.h; the numbers lie in the lowest eight bytes.
CUDAPREFILL_INLINE __m128i narrow(Vec v, Float8) {
  const __m256i bits = _mm256_castps_si256(v.lanes);
  const __m256 absolute = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), v.lanes);
  const __m256 magnitude = _mm256_min_ps(_mm256_set1_ps(448.0f), absolute);  // the order keeps NaN
  const __m256i number = _mm256_castps_si256(magnitude);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(number, 20), _mm256_set1_epi32(1));
  const __m256i normal =
      _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(number, odd), _mm256_set1_epi32(0x7ffff - 0x3c000000)), 20);
  const __m256i subnormal = _mm256_castps_si256(_mm256_add_ps(magnitude, _mm256_set1_ps(0x1p14f)));
  const __m256i small = _mm256_castps_si256(_mm256_cmp_ps(magnitude, _mm256_set1_ps(0x1p-6f), _CMP_LT_OQ));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v.lanes, v.lanes, _CMP_UNORD_Q));
  const __m256i low = _mm256_set1_epi32(0x7f);
  const __m256i result = _mm256_and_si256(_mm256_or_si256(_mm256_blendv_epi8(normal, subnormal, small), nan), low);
  const __m256i sign = _mm256_and_si256(_mm256_srli_epi32(bits, 24), _mm256_set1_epi32(0x80));
  const __m256i signed_result = _mm256_or_si256(result, sign);
  const __m128i words =
      _mm_packus_epi32(_mm256_castsi256_si128(signed_result), _mm256_extracti128_si256(signed_result, 1));
  return _mm_packus_epi16(words, words);
}

CUDAPREFILL_INLINE Vec load(const Float8* from) {
  return widen(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)), Float8{});
}
CUDAPREFILL_INLINE Vec load_first(const Float8* from, int count) {
  Float8 whole[Vec::kWidth] = {};
  std::memcpy(whole, from, count);
  return load(whole);
}
CUDAPREFILL_INLINE void store(Float8* to, Vec v) {
  _mm_storel_epi64(reinterpret_cast<__m128i*>(to), narrow(v, Float8{}));
}
CUDAPREFILL_INLINE void store_first(Float8* to, Vec v, int count) {
  Float8 whole[Vec::kWidth];
  store(whole, v);
  std::memcpy(to, whole, count);
}

CUDAPREFILL_INLINE Vec broadcast(Float16 value) {
  return {_mm256_cvtph_ps(_mm_set1_epi16(static_cast<int16_t>(value.bits)))};
}

CUDAPREFILL_INLINE Vec load_signed_bytes(const int8_t* from) {
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))))};
}

class NibbleValues {
 public:
  CUDAPREFILL_INLINE NibbleValues(Vec scale, Vec offset) : scale_(scale), offset_(offset) {}
  CUDAPREFILL_INLINE Vec low(const uint8_t* bytes) const {
    return value(_mm256_and_si256(numbers(bytes), _mm256_set1_epi32(15)));
  }
  CUDAPREFILL_INLINE Vec high(const uint8_t* bytes) const { return value(_mm256_srli_epi32(numbers(bytes), 4)); }

 private:
  CUDAPREFILL_INLINE static __m256i numbers(const uint8_t* bytes) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes)));
  }
  CUDAPREFILL_INLINE Vec value(__m256i number) const { return fma(Vec{_mm256_cvtepi32_ps(number)}, scale_, offset_); }
  Vec scale_, offset_;
};

}  // namespace cudaprefill::cpu::CUDAPREFILL_ISA
