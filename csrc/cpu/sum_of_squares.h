// What RMSNorm divides by.
#pragma once

#include "csrc/cpu/simd.h"

namespace cudaprefill::cpu::CUDAPREFILL_ISA {

// In four sums side by side: they hide the latency of adding, and short sums round less.
template <class T>
CUDAPREFILL_INLINE float sum_of_squares(const T* x, int64_t size) {
  constexpr int kSums = 4;
  Vec sums[kSums] = {zero(), zero(), zero(), zero()};
  int64_t i = 0;
  for (; i + kSums * Vec::kWidth <= size; i += kSums * Vec::kWidth) {
#pragma GCC unroll 4
    for (int s = 0; s < kSums; ++s) {
      const Vec v = load(x + i + s * Vec::kWidth);
      sums[s] = fma(v, v, sums[s]);
    }
  }
  const auto add = [&](Vec v) { sums[0] = fma(v, v, sums[0]); };
  for_each_vector(
      size - i, [&](int64_t rest) { add(load(x + i + rest)); },
      [&](int64_t rest, int count) { add(load_first(x + i + rest, count)); });
  return sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

}  // namespace cudaprefill::cpu::CUDAPREFILL_ISA
