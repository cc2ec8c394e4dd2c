#include <cmath>

#include "csrc/cpu/float_types.h"
#include "csrc/cpu/kernel_declarations.h"
#include "csrc/cpu/parallel.h"

namespace cudaprefill::cpu::CUDAPREFILL_ISA {

void silu_and_mul(const SiluAndMulParams& params) {
  with_element_type(params.dtype, [&](auto t) {
    using T = decltype(t);
    parallel_for(params.num_rows, 16, [&](int64_t first, int64_t last) {
      for (int64_t row = first; row < last; ++row) {
        const T* gate = static_cast<const T*>(params.x) + row * params.x_stride;
        const T* up = gate + params.size;
        T* out = static_cast<T*>(params.out) + row * params.out_stride;
        for (int64_t i = 0; i < params.size; ++i) {
          const float x = to_float(gate[i]);
          out[i] = from_float<T>(x / (1 + std::exp(-x)) * to_float(up[i]));
        }
      }
    });
  });
}

}  // namespace cudaprefill::cpu::CUDAPREFILL_ISA
