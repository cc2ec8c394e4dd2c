// The functions of the online softmax. Scores are kept in units of log 2, so that a weight is a power of two.
#pragma once

#include <limits>

#include "csrc/cpu/attention_simd.h"

namespace cudaprefill::cpu::CUDAPREFILL_ISA {

constexpr float kLog2E = 1.44269504f;
// The highest score before any key was seen. Finite, for then a difference of two of these is 0 and not NaN.
constexpr float kNoScore = std::numeric_limits<float>::lowest();
constexpr float kMasked = -std::numeric_limits<float>::infinity();

// 2^f for |f| <= 1/2: the minimax fit that is 1 at 0, relative error 4e-9.
CUDAPREFILL_INLINE Vec exp2_of_fraction(Vec f) {
  Vec p = broadcast(1.53375789e-4f);
  p = fma(p, f, broadcast(1.33903666e-3f));
  p = fma(p, f, broadcast(9.61844241e-3f));
  p = fma(p, f, broadcast(5.55035835e-2f));
  p = fma(p, f, broadcast(2.40226485e-1f));
  p = fma(p, f, broadcast(6.93147188e-1f));
  return fma(p, f, broadcast(1.0f));
}

// 2^v for v <= 127, to about 1e-7; exactly 0 below -126.5, and NaN stays NaN. v = n + f with |f| <= 1/2.
CUDAPREFILL_INLINE Vec exp2(Vec v) {
#if CUDAPREFILL_ISA_AVX512
  // One instruction each, and of units that the products of attention leave alone.
  const Vec n = round(v);
  return zero_below(v, broadcast(-126.5f), scale_by_power_of_two(exp2_of_fraction(v - n), n));
#else
  // Adding 1.5 * 2^23 leaves n in the low bits of the sum, and 127 more makes these the exponent field of 2^n.
  const Vec to_low_bits = broadcast(0x1.8p23f + 127.0f);
  const Vec x = max(broadcast(-127.0f), v);
  const Vec n_in_low_bits = x + to_low_bits;
  return exp2_of_fraction(x - (n_in_low_bits - to_low_bits)) * shift_low_bits_to_exponent(n_in_low_bits);
#endif
}

CUDAPREFILL_INLINE float exp2(float v) {
  float result;
  store_first(&result, exp2(broadcast(v)), 1);
  return result;
}

// tanh(v) to about 1e-7 of its value: an odd minimax polynomial near 0, where 1 - 2 / (e^2v + 1) would cancel.
CUDAPREFILL_INLINE Vec tanh(Vec v) {
  const Vec square = v * v;
  Vec p = broadcast(-6.11319287e-3f);
  p = fma(p, square, broadcast(2.10100825e-2f));
  p = fma(p, square, broadcast(-5.38540701e-2f));
  p = fma(p, square, broadcast(1.33327946e-1f));
  p = fma(p, square, broadcast(-3.33333292e-1f));
  const Vec near_zero = fma(p * square, v, v);
  const Vec power = exp2(min(broadcast(100.0f), v * broadcast(2 * kLog2E)));  // tanh is 1 to the last bit long before
  const Vec elsewhere = broadcast(1.0f) - broadcast(2.0f) / (power + broadcast(1.0f));
  return where_less(square, broadcast(0.625f * 0.625f), near_zero, elsewhere);
}

// What the products q . k are multiplied by before soft_capped(), and what that gives: scores in units of log 2.
struct ScoreScale {
  float product;  // folded into q
  float softcap;  // 0 = off: then the product is the score

  ScoreScale(float scale, float cap) : product(cap > 0 ? scale / cap : scale * kLog2E), softcap(cap * kLog2E) {}
};

CUDAPREFILL_INLINE Vec soft_capped(Vec product, float softcap) { return tanh(product) * broadcast(softcap); }

}  // namespace cudaprefill::cpu::CUDAPREFILL_ISA
