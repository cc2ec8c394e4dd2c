#include <cmath>

#include "csrc/cpu/float_types.h"
#include "csrc/cpu/kernel_declarations.h"
#include "csrc/cpu/parallel.h"

namespace cudaprefill::cpu::CUDAPREFILL_ISA {

void rms_norm(const RmsNormParams& params) {
  with_element_type(params.dtype, [&](auto t) {
    using T = decltype(t);
    parallel_for(params.num_rows, 16, [&](int64_t first, int64_t last) {
      for (int64_t row = first; row < last; ++row) {
        const T* x = static_cast<const T*>(params.x) + row * params.x_stride;
        T* residual = static_cast<T*>(params.residual) + row * params.residual_stride;
        T* out = static_cast<T*>(params.out) + row * params.out_stride;
        float squares = 0;
        for (int64_t i = 0; i < params.hidden_size; ++i) {
          if (params.residual != nullptr) residual[i] = from_float<T>(to_float(residual[i]) + to_float(x[i]));
          const float value = to_float(params.residual != nullptr ? residual[i] : x[i]);
          squares += value * value;
        }
        const float scale = 1 / std::sqrt(squares / params.hidden_size + params.epsilon);
        for (int64_t i = 0; i < params.hidden_size; ++i) {
          const float value = to_float(params.residual != nullptr ? residual[i] : x[i]);
          out[i] = from_float<T>(value * scale * to_float(static_cast<const T*>(params.weight)[i]));
        }
      }
    });
  });
}

}  // namespace cudaprefill::cpu::CUDAPREFILL_ISA
