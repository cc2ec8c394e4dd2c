// Vec for AVX-512 (F, BW, VL, DQ): 16 lanes. See simd.h.
#pragma once

#include <immintrin.h>

#include "csrc/cpu/float_types.h"
#include "csrc/cpu/isa.h"

namespace cudaprefill::cpu::CUDAPREFILL_ISA {

struct Vec {
  static constexpr int kWidth = 16;
  __m512 lanes;
};

CUDAPREFILL_INLINE Vec zero() { return {_mm512_setzero_ps()}; }
CUDAPREFILL_INLINE Vec broadcast(float value) { return {_mm512_set1_ps(value)}; }
CUDAPREFILL_INLINE Vec operator+(Vec a, Vec b) { return {_mm512_add_ps(a.lanes, b.lanes)}; }
CUDAPREFILL_INLINE Vec operator-(Vec a, Vec b) { return {_mm512_sub_ps(a.lanes, b.lanes)}; }
CUDAPREFILL_INLINE Vec operator*(Vec a, Vec b) { return {_mm512_mul_ps(a.lanes, b.lanes)}; }
CUDAPREFILL_INLINE Vec operator/(Vec a, Vec b) { return {_mm512_div_ps(a.lanes, b.lanes)}; }
CUDAPREFILL_INLINE Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.lanes, b.lanes, c.lanes)}; }
CUDAPREFILL_INLINE Vec max(Vec a, Vec b) { return {_mm512_max_ps(a.lanes, b.lanes)}; }
CUDAPREFILL_INLINE Vec min(Vec a, Vec b) { return {_mm512_min_ps(a.lanes, b.lanes)}; }
CUDAPREFILL_INLINE Vec round(Vec v) {
  return {_mm512_roundscale_ps(v.lanes, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
CUDAPREFILL_INLINE float sum(Vec v) { return _mm512_reduce_add_ps(v.lanes); }
CUDAPREFILL_INLINE float largest(Vec v) { return _mm512_reduce_max_ps(v.lanes); }

CUDAPREFILL_INLINE void store_sums(float* to, Vec a, Vec b, Vec c, Vec d) {
  // Halves, then quarters are added until each 128-bit lane holds four partial sums of one vector.
  const __m512 ab =
      _mm512_add_ps(_mm512_shuffle_f32x4(a.lanes, b.lanes, 0x44), _mm512_shuffle_f32x4(a.lanes, b.lanes, 0xee));
  const __m512 cd =
      _mm512_add_ps(_mm512_shuffle_f32x4(c.lanes, d.lanes, 0x44), _mm512_shuffle_f32x4(c.lanes, d.lanes, 0xee));
  __m512 all = _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
  all = _mm512_add_ps(all, _mm512_permute_ps(all, 0x4e));
  all = _mm512_add_ps(all, _mm512_permute_ps(all, 0xb1));
  const __m512i first_of_each = _mm512_setr_epi32(0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12);
  _mm_storeu_ps(to, _mm512_castps512_ps128(_mm512_permutexvar_ps(first_of_each, all)));
}

CUDAPREFILL_INLINE void store_largest(float* to, Vec a, Vec b, Vec c, Vec d) {
  // Until each 128-bit lane holds a number of each vector.
  const __m512 ab = _mm512_max_ps(_mm512_unpacklo_ps(a.lanes, b.lanes), _mm512_unpackhi_ps(a.lanes, b.lanes));
  const __m512 cd = _mm512_max_ps(_mm512_unpacklo_ps(c.lanes, d.lanes), _mm512_unpackhi_ps(c.lanes, d.lanes));
  const __m512 all = _mm512_max_ps(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xee));
  const __m256 half = _mm256_max_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps(all, 1));
  _mm_storeu_ps(to, _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
}

// Pairs, then fours of 32-bit lanes are interleaved, then 128-bit lanes move to their places in two steps.
CUDAPREFILL_INLINE void transpose(Vec (&rows)[Vec::kWidth]) {
  __m512 pairs[16], fours[16], eights[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    pairs[i] = _mm512_unpacklo_ps(rows[i].lanes, rows[i + 1].lanes);
    pairs[i + 1] = _mm512_unpackhi_ps(rows[i].lanes, rows[i + 1].lanes);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    fours[i] = _mm512_shuffle_ps(pairs[i], pairs[i + 2], 0x44);
    fours[i + 1] = _mm512_shuffle_ps(pairs[i], pairs[i + 2], 0xee);
    fours[i + 2] = _mm512_shuffle_ps(pairs[i + 1], pairs[i + 3], 0x44);
    fours[i + 3] = _mm512_shuffle_ps(pairs[i + 1], pairs[i + 3], 0xee);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    eights[i] = _mm512_shuffle_f32x4(fours[i], fours[i + 4], 0x88);
    eights[i + 4] = _mm512_shuffle_f32x4(fours[i], fours[i + 4], 0xdd);
    eights[i + 8] = _mm512_shuffle_f32x4(fours[i + 8], fours[i + 12], 0x88);
    eights[i + 12] = _mm512_shuffle_f32x4(fours[i + 8], fours[i + 12], 0xdd);
  }
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    rows[i].lanes = _mm512_shuffle_f32x4(eights[i], eights[i + 8], 0x88);
    rows[i + 8].lanes = _mm512_shuffle_f32x4(eights[i], eights[i + 8], 0xdd);
  }
}

// v * 2^n for whole n
CUDAPREFILL_INLINE Vec scale_by_power_of_two(Vec v, Vec n) { return {_mm512_scalef_ps(v.lanes, n.lanes)}; }

// `result` where v >= bound or v is NaN, else 0
CUDAPREFILL_INLINE Vec zero_below(Vec v, Vec bound, Vec result) {
  return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(v.lanes, bound.lanes, _CMP_NLT_UQ), result.lanes)};
}

CUDAPREFILL_INLINE __mmask16 first_lanes(int count) { return static_cast<__mmask16>((1u << count) - 1); }

CUDAPREFILL_INLINE Vec widen(__m256i halves, BFloat16) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16))};
}
CUDAPREFILL_INLINE Vec widen(__m256i halves, Float16) { return {_mm512_cvtph_ps(halves)}; }

// Round to nearest, ties to even; NaN stays NaN.
CUDAPREFILL_INLINE __m256i narrow(Vec v, BFloat16) {
  const __m512i bits = _mm512_castps_si512(v.lanes);
  const __m512i high = _mm512_srli_epi32(bits, 16);
  const __m512i half = _mm512_add_epi32(_mm512_set1_epi32(0x7fff), _mm512_and_si512(high, _mm512_set1_epi32(1)));
  const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, half), 16);
  const __mmask16 nan = _mm512_cmp_ps_mask(v.lanes, v.lanes, _CMP_UNORD_Q);
  return _mm512_cvtepi32_epi16(_mm512_mask_or_epi32(rounded, nan, high, _mm512_set1_epi32(0x40)));
}
CUDAPREFILL_INLINE __m256i narrow(Vec v, Float16) {
  return _mm512_cvtps_ph(v.lanes, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

CUDAPREFILL_INLINE Vec load(const float* from) { return {_mm512_loadu_ps(from)}; }
CUDAPREFILL_INLINE Vec load_first(const float* from, int count) {
  return {_mm512_maskz_loadu_ps(first_lanes(count), from)};
}
CUDAPREFILL_INLINE void store(float* to, Vec v) { _mm512_storeu_ps(to, v.lanes); }
CUDAPREFILL_INLINE void store_first(float* to, Vec v, int count) {
  _mm512_mask_storeu_ps(to, first_lanes(count), v.lanes);
}

template <class Half>
CUDAPREFILL_INLINE Vec load(const Half* from) {
  return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)), Half{});
}
template <class Half>
CUDAPREFILL_INLINE Vec load_first(const Half* from, int count) {
  return widen(_mm256_maskz_loadu_epi16(first_lanes(count), from), Half{});
}
template <class Half>
CUDAPREFILL_INLINE void store(Half* to, Vec v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), narrow(v, Half{}));
}
template <class Half>
CUDAPREFILL_INLINE void store_first(Half* to, Vec v, int count) {
  _mm256_mask_storeu_epi16(to, first_lanes(count), narrow(v, Half{}));
}

// e4m3 in the place of float16's numbers: sign, four bits of exponent and three of mantissa, 2^8 too small. The lowest
// bit of the exponent that is then free becomes 1 where all others are, for a NaN: its exponent is full, too.
CUDAPREFILL_INLINE Vec widen(__m128i bytes, Float8) {
  const __m256i halves = _mm256_and_si256(_mm256_slli_epi16(_mm256_cvtepi8_epi16(bytes), 7),
                                          _mm256_set1_epi16(static_cast<int16_t>(0xbfff)));
  const __m256i nan = _mm256_and_si256(_mm256_add_epi16(halves, _mm256_set1_epi16(0x80)), _mm256_set1_epi16(0x4000));
  return {_mm512_mul_ps(_mm512_cvtph_ps(_mm256_or_si256(halves, nan)), _mm512_set1_ps(256.0f))};
}

// As from_float<Float8> of float_types.h.
CUDAPREFILL_INLINE __m128i narrow(Vec v, Float8) {
  const __m512i bits = _mm512_castps_si512(v.lanes);
  const __m512 magnitude = _mm512_min_ps(_mm512_set1_ps(448.0f), _mm512_abs_ps(v.lanes));  // the order keeps NaN
  const __m512i number = _mm512_castps_si512(magnitude);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(number, 20), _mm512_set1_epi32(1));
  const __m512i normal =
      _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(number, odd), _mm512_set1_epi32(0x7ffff - 0x3c000000)), 20);
  const __m512i subnormal = _mm512_castps_si512(_mm512_add_ps(magnitude, _mm512_set1_ps(0x1p14f)));
  const __mmask16 small = _mm512_cmp_ps_mask(magnitude, _mm512_set1_ps(0x1p-6f), _CMP_LT_OQ);
  const __mmask16 nan = _mm512_cmp_ps_mask(v.lanes, v.lanes, _CMP_UNORD_Q);
  __m512i result = _mm512_mask_mov_epi32(normal, small, subnormal);
  result = _mm512_and_si512(_mm512_mask_mov_epi32(result, nan, _mm512_set1_epi32(0x7f)), _mm512_set1_epi32(0x7f));
  const __m512i sign = _mm512_and_si512(_mm512_srli_epi32(bits, 24), _mm512_set1_epi32(0x80));
  return _mm512_cvtepi32_epi8(_mm512_or_si512(result, sign));
}

CUDAPREFILL_INLINE Vec load(const Float8* from) {
  return widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)), Float8{});
}
CUDAPREFILL_INLINE Vec load_first(const Float8* from, int count) {
  return widen(_mm_maskz_loadu_epi8(first_lanes(count), from), Float8{});
}
CUDAPREFILL_INLINE void store(Float8* to, Vec v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), narrow(v, Float8{}));
}
CUDAPREFILL_INLINE void store_first(Float8* to, Vec v, int count) {
  _mm_mask_storeu_epi8(to, first_lanes(count), narrow(v, Float8{}));
}

CUDAPREFILL_INLINE Vec broadcast(Float16 value) {
  return {_mm512_cvtph_ps(_mm256_set1_epi16(static_cast<int16_t>(value.bits)))};
}

CUDAPREFILL_INLINE Vec load_signed_bytes(const int8_t* from) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))))};
}

// All sixteen values in a register; looking one up uses the low four bits of its index alone.
class NibbleValues {
 public:
  CUDAPREFILL_INLINE NibbleValues(Vec scale, Vec offset)
      : values_(_mm512_fmadd_ps(_mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), scale.lanes,
                                offset.lanes)) {}
  CUDAPREFILL_INLINE Vec low(const uint8_t* bytes) const { return {_mm512_permutexvar_ps(indices(bytes), values_)}; }
  CUDAPREFILL_INLINE Vec high(const uint8_t* bytes) const {
    return {_mm512_permutexvar_ps(_mm512_srli_epi32(indices(bytes), 4), values_)};
  }

 private:
  CUDAPREFILL_INLINE static __m512i indices(const uint8_t* bytes) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
  }
  __m512 values_;
};

}  // namespace cudaprefill::cpu::CUDAPREFILL_ISA
