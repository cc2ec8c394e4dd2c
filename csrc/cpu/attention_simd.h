// What attention does with a vector beyond simd.h.
#pragma once

#include "csrc/cpu/simd.h"

namespace cudaprefill::cpu::CUDAPREFILL_ISA {

// where_less(a, b, x, y)          x where a < b, else y (also where either is NaN)
// shift_low_bits_to_exponent(v)   the bits of v moved up by 23, past the mantissa
#if CUDAPREFILL_ISA_AVX512

CUDAPREFILL_INLINE Vec where_less(Vec a, Vec b, Vec x, Vec y) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.lanes, b.lanes, _CMP_LT_OQ), y.lanes, x.lanes)};
}
CUDAPREFILL_INLINE Vec shift_low_bits_to_exponent(Vec v) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(v.lanes), 23))};
}

#elif CUDAPREFILL_ISA_AVX2

CUDAPREFILL_INLINE Vec where_less(Vec a, Vec b, Vec x, Vec y) {
  return {_mm256_blendv_ps(y.lanes, x.lanes, _mm256_cmp_ps(a.lanes, b.lanes, _CMP_LT_OQ))};
}
CUDAPREFILL_INLINE Vec shift_low_bits_to_exponent(Vec v) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(v.lanes), 23))};
}

#else

CUDAPREFILL_INLINE Vec where_less(Vec a, Vec b, Vec x, Vec y) { return {a.lanes < b.lanes ? x.lanes : y.lanes}; }
CUDAPREFILL_INLINE Vec shift_low_bits_to_exponent(Vec v) {
  return {reinterpret_cast<FourFloats>(reinterpret_cast<FourInts>(v.lanes) << 23)};
}

#endif

}  // namespace cudaprefill::cpu::CUDAPREFILL_ISA
