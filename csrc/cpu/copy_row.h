// One row from one element type to another.
#pragma once

#include <cstring>
#include <type_traits>

#include "csrc/cpu/simd.h"

namespace cudaprefill::cpu::CUDAPREFILL_ISA {

template <class From, class To>
CUDAPREFILL_INLINE void copy_row(const From* from, To* to, int64_t size) {
  if constexpr (std::is_same_v<From, To>) {
    std::memcpy(to, from, size * sizeof(From));
  } else {
    for_each_vector(
        size, [&](int64_t i) { store(to + i, load(from + i)); },
        [&](int64_t i, int count) { store_first(to + i, load_first(from + i, count), count); });
  }
}

}  // namespace cudaprefill::cpu::CUDAPREFILL_ISA
