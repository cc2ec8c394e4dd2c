#include "csrc/cpu/gated_linear.h"

#include <memory>

#include "csrc/cpu/kernels.h"

namespace cudaprefill::cpu {

void gated_linear_in_two_steps(const GatedLinearParams& params) {
  LinearParams gate_up = params.gate_up;
  const auto product = std::make_unique_for_overwrite<float[]>(gate_up.num_rows * gate_up.num_outputs);
  gate_up.out = product.get();
  gate_up.out_stride = gate_up.num_outputs;
  linear(gate_up);
  const GatedParams gated = {.x = product.get(),
                             .out = params.out,
                             .num_rows = gate_up.num_rows,
                             .x_stride = gate_up.out_stride,
                             .out_stride = params.out_stride,
                             .size = static_cast<int32_t>(gate_up.num_outputs / 2),
                             .dtype = DType::kFloat32};
  params.activation == Activation::kSilu ? silu_and_mul(gated) : gelu_tanh_and_mul(gated);
}

}  // namespace cudaprefill::cpu
