#include "csrc/cpu/kernel_declarations.h"
#include "csrc/cpu/parallel.h"
#include "csrc/cpu/simd.h"

namespace cudaprefill::cpu::CUDAPREFILL_ISA {
namespace {

template <class Activation>
void activate_and_mul(const GatedParams& params, const Activation& activation) {
  with_element_type(params.dtype, [&](auto t) {
    using T = decltype(t);
    parallel_for(params.num_rows, grain_of(2 * params.size), [&](int64_t first, int64_t last) {
      for (int64_t row = first; row < last; ++row) {
        const T* gate = static_cast<const T*>(params.x) + row * params.x_stride;
        const T* up = gate + params.size;
        T* out = static_cast<T*>(params.out) + row * params.out_stride;
        for_each_vector(
            params.size, [&](int64_t i) { store(out + i, activation(load(gate + i)) * load(up + i)); },
            [&](int64_t i, int count) {
              store_first(out + i, activation(load_first(gate + i, count)) * load_first(up + i, count), count);
            });
      }
    });
  });
}

}  // namespace

void silu_and_mul(const SiluAndMulParams& params) {
  activate_and_mul(params, [](Vec gate) { return silu(gate); });
}

void gelu_tanh_and_mul(const GeluTanhAndMulParams& params) {
  activate_and_mul(params, [](Vec gate) { return gelu_tanh(gate); });
}

}  // namespace cudaprefill::cpu::CUDAPREFILL_ISA
