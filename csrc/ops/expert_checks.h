// The argument checks of `expert_mlp` and `expert_mlp_blocks`; `out` and `out_stride` are left to the caller.
#pragma once

#include "csrc/ops/expert_params.h"
#include "csrc/ops/tensor_arg.h"

namespace cudaprefill::ops {

ExpertMlpParams expert_mlp_params(const Tensor& x, const Tensor& router_logits, const Tensor& gate_up,
                                  const Tensor& down, int64_t num_chosen, bool renormalise);
ExpertMlpParams expert_mlp_blocks_params(const Tensor& x, const Tensor& router_logits, const Tensor& gate_up,
                                         int64_t gate_up_format, const Tensor& down, int64_t down_format,
                                         int64_t inner_size, int64_t num_chosen, bool renormalise,
                                         int64_t activation_bits);

// What is the same whatever the weights are stored as; how many rows these have is left to the caller.
ExpertMlpParams fill_experts(const char* op, const TensorArg& x, const TensorArg& router_logits,
                             const TensorArg& gate_up, const TensorArg& down, int64_t num_inner, int64_t num_chosen,
                             bool renormalise);

}  // namespace cudaprefill::ops
