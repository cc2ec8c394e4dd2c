#include "csrc/cpu/float_types.h"
#include "csrc/cpu/kernel_declarations.h"
#include "csrc/cpu/parallel.h"

namespace cudaprefill::cpu::CUDAPREFILL_ISA {

void linear(const LinearParams& params) {
  with_element_type(params.weight_dtype, [&](auto w) {
    using W = decltype(w);
    parallel_for(params.num_outputs, 64, [&](int64_t first, int64_t last) {
      for (int64_t n = first; n < last; ++n) {
        const W* weight = static_cast<const W*>(params.weight) + n * params.weight_stride;
        for (int64_t m = 0; m < params.num_rows; ++m) {
          const float* x = params.x + m * params.x_stride;
          float sum = 0;
          for (int64_t k = 0; k < params.num_inputs; ++k) sum += x[k] * to_float(weight[k]);
          params.out[m * params.out_stride + n] = sum + (params.bias == nullptr ? 0 : params.bias[n]);
        }
      }
    });
  });
}

}  // namespace cudaprefill::cpu::CUDAPREFILL_ISA
