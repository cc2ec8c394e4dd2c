// A vector of float32 lanes of the level being compiled, and all that the kernels do with it. A kernel is written once
// on top of this and compiled for each level.
//
//   Vec                       kWidth lanes; + - * / work lane by lane
//   load(p), store(p, v)      kWidth elements of float, BFloat16, Float16 or Float8 at any address, converted from / to
//                             float32
//   load_first(p, n), store_first(p, v, n)   only the first n < kWidth elements; the other lanes load as 0
//   fma(a, b, c)              a * b + c (rounded twice at the plain level on x86)
//   max(a, b), min(a, b)      b where either is NaN
//   sum(v), largest(v)        over the lanes
//   store_sums(p, a, b, c, d) the four sums to p[0] .. p[3]
//   store_largest(p, a, b, c, d)   the largest lane of each, where none is NaN
//   transpose(rows)           kWidth vectors as a square matrix
//   exp(v), silu(v), gelu_tanh(v)
//   broadcast(v)              a float or a Float16 in all lanes
//   load_signed_bytes(p)      kWidth of them
//   NibbleValues(scale, offset)   what the 4-bit numbers of a block stand for: low(p) and high(p) give
//                             scale * q + offset of the low or high halves of kWidth bytes
//   prefetch(p)               into the nearest cache; prefetch_to_second_cache(p)
#pragma once

#include "csrc/cpu/isa.h"

#if CUDAPREFILL_ISA_AVX512
#include "csrc/cpu/simd_avx512.h"
#elif CUDAPREFILL_ISA_AVX2
#include "csrc/cpu/simd_avx2.h"
#else
#include "csrc/cpu/simd_plain.h"
#endif

namespace cudaprefill::cpu::CUDAPREFILL_ISA {

CUDAPREFILL_INLINE void prefetch(const void* address) { __builtin_prefetch(address, 0, 3); }
CUDAPREFILL_INLINE void prefetch_to_second_cache(const void* address) { __builtin_prefetch(address, 0, 2); }

// e^v within one unit in the last place or two; 0 below -87.3 (no subnormal results), infinity above 88.7.
//
// v = n ln 2 + r with |r| <= ln 2 / 2. The polynomial is the minimax fit of (e^r - 1 - r) / r^2, its error weighted to
// be relative to e^r: 3e-9 at most, so what remains is rounding.
CUDAPREFILL_INLINE Vec exp(Vec v) {
  const Vec x = max(broadcast(-88.0f), min(broadcast(89.0f), v));  // the order keeps NaN
  const Vec n = round(x * broadcast(1.44269504f));
  Vec r = fma(n, broadcast(-0.693359375f), x);  // ln 2 in two parts, of which n times the first is exact
  r = fma(n, broadcast(2.12194440e-4f), r);
  Vec p = broadcast(1.38145401e-3f);
  p = fma(p, r, broadcast(8.36874511e-3f));
  p = fma(p, r, broadcast(4.16683908e-2f));
  p = fma(p, r, broadcast(1.66665204e-1f));
  p = fma(p, r, broadcast(4.99999934e-1f));
  p = fma(p, r, broadcast(1.0f));
  p = fma(p, r, broadcast(1.0f));
  return zero_below(v, broadcast(-87.3365447f), scale_by_power_of_two(p, n));
}

// v / (1 + e^-v)
CUDAPREFILL_INLINE Vec silu(Vec v) { return v / (broadcast(1.0f) + exp(zero() - v)); }

// v / 2 (1 + tanh u) with u = sqrt(2 / pi) (v + 0.044715 v^3), which is v / (1 + e^-2u). Where v^3 leaves the range of
// float32, e^-2u is 0 or infinite, as it should be.
CUDAPREFILL_INLINE Vec gelu_tanh(Vec v) {
  constexpr float kTwiceRoot = 1.5957691216f;  // 2 sqrt(2 / pi)
  const Vec cubic = fma(v * v, broadcast(0.044715f), broadcast(1.0f));
  return v / (broadcast(1.0f) + exp(v * cubic * broadcast(-kTwiceRoot)));
}

// Calls whole(i) for each vector of `size` elements, then rest(i, count) for the elements that are left, if any.
template <class Whole, class Rest>
CUDAPREFILL_INLINE void for_each_vector(int64_t size, const Whole& whole, const Rest& rest) {
  int64_t i = 0;
  for (; i + Vec::kWidth <= size; i += Vec::kWidth) whole(i);
  if (i < size) rest(i, static_cast<int>(size - i));
}

}  // namespace cudaprefill::cpu::CUDAPREFILL_ISA
