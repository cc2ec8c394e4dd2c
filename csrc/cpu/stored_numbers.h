// How numbers become what a cache stores: converted, and before that divided by the scale of their head for float8, or
// kept within what float16 holds: an infinite K would turn the weights of each query that it answers into NaN.
#pragma once

#include <cstring>
#include <type_traits>

#include "csrc/cpu/cache_scales.h"
#include "csrc/cpu/simd.h"

namespace cudaprefill::cpu::CUDAPREFILL_ISA {

// Of one head of a cache of type Kv.
template <class Kv>
struct StoredNumbers {
  StoredNumbers(const PagedCache&, int64_t) {}
  CUDAPREFILL_INLINE Vec of(Vec v) const { return v; }
};

template <>
struct StoredNumbers<Float8> {
  float inverse;  // once a head; for a power of two the product is the quotient

  StoredNumbers(const PagedCache& cache, int64_t head) : inverse(1.0f / scale_of(cache, head)) {}
  CUDAPREFILL_INLINE Vec of(Vec v) const { return v * broadcast(inverse); }
};

template <>
struct StoredNumbers<Float16> {
  static constexpr float kLargest = 65504;

  StoredNumbers(const PagedCache&, int64_t) {}
  CUDAPREFILL_INLINE Vec of(Vec v) const {
    return max(broadcast(-kLargest), min(broadcast(kLargest), v));  // the order keeps NaN
  }
};

// Stores a row of one head.
template <class From, class Kv>
CUDAPREFILL_INLINE void store_row(const From* from, Kv* to, int64_t size, const StoredNumbers<Kv>& stored) {
  if constexpr (std::is_same_v<From, Kv>) {
    std::memcpy(to, from, size * sizeof(From));
  } else {
    for_each_vector(
        size, [&](int64_t i) { store(to + i, stored.of(load(from + i))); },
        [&](int64_t i, int count) { store_first(to + i, stored.of(load_first(from + i, count)), count); });
  }
}

}  // namespace cudaprefill::cpu::CUDAPREFILL_ISA
