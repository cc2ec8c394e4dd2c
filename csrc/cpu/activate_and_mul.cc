#include "csrc/cpu/activate_and_mul.h"

#include "csrc/cpu/kernel_declarations.h"
#include "csrc/cpu/parallel.h"

namespace cudaprefill::cpu::CUDAPREFILL_ISA {
namespace {

void activate_and_mul(const GatedParams& params, Activation activation) {
  with_activation(activation, [&](const auto& function) {
    with_element_type(params.dtype, [&](auto t) {
      using T = decltype(t);
      parallel_for(params.num_rows, grain_of(2 * params.size), [&](int64_t first, int64_t last) {
        for (int64_t row = first; row < last; ++row) {
          const T* gate = static_cast<const T*>(params.x) + row * params.x_stride;
          T* out = static_cast<T*>(params.out) + row * params.out_stride;
          activate_and_mul_row(gate, gate + params.size, out, params.size, function);
        }
      });
    });
  });
}

}  // namespace

void silu_and_mul(const SiluAndMulParams& params) { activate_and_mul(params, Activation::kSilu); }

void gelu_tanh_and_mul(const GeluTanhAndMulParams& params) { activate_and_mul(params, Activation::kGeluTanh); }

}  // namespace cudaprefill::cpu::CUDAPREFILL_ISA
