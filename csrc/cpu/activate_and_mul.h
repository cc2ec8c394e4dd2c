// activation(gate) * up, for one row of each.
#pragma once

#include "csrc/cpu/simd.h"
#include "csrc/ops/params.h"

namespace cudaprefill::cpu::CUDAPREFILL_ISA {

// out = function(gate) * up, `size` elements of each; out may be gate or up.
template <class T, class Function>
CUDAPREFILL_INLINE void activate_and_mul_row(const T* gate, const T* up, T* out, int64_t size,
                                             const Function& function) {
  for_each_vector(
      size, [&](int64_t i) { store(out + i, function(load(gate + i)) * load(up + i)); },
      [&](int64_t i, int count) {
        store_first(out + i, function(load_first(gate + i, count)) * load_first(up + i, count), count);
      });
}

// Calls body(function) with the function that `activation` names, of vectors.
template <class Body>
CUDAPREFILL_INLINE void with_activation(Activation activation, const Body& body) {
  switch (activation) {
    case Activation::kSilu:
      return body([](Vec gate) { return silu(gate); });
    case Activation::kGeluTanh:
      return body([](Vec gate) { return gelu_tanh(gate); });
  }
}

}  // namespace cudaprefill::cpu::CUDAPREFILL_ISA
