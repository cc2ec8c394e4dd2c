#include "csrc/ops/expert_checks.h"

#include <limits>

namespace cudaprefill::ops {

constexpr int64_t kAny = TensorArg::kAny;

ExpertMlpParams fill_experts(const char* op, const TensorArg& x, const TensorArg& router_logits,
                             const TensorArg& gate_up, const TensorArg& down, int64_t num_inner, int64_t num_chosen,
                             bool renormalise) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  ExpertMlpParams params{};
  params.dtype =
      x.expect_shape("[num_tokens, hidden_size]", {kAny, kAny}).expect_contiguous_last_dim().expect_floating();
  router_logits.expect_shape("[num_tokens, num_experts]", {x.size(0), kAny})
      .expect_dtype_of(x)
      .expect_device_of(x)
      .expect_contiguous_last_dim();
  const int64_t num_experts = router_logits.size(1);
  if (num_chosen < 1 || num_chosen > num_experts) {
    fail(op, ": num_chosen must be 1 .. ", num_experts, ", the number of experts, got ", num_chosen);
  }
  if (x.size(0) > kMost / num_chosen || x.size(1) > kMost || num_inner > kMost) {
    fail(op, ": x has ", x.size(0), " rows of ", x.size(1), ", beyond 32 bits with ", num_chosen, " experts each");
  }
  params.x = x.data();
  params.router_logits = router_logits.data();
  params.gate_up.data = gate_up.data();
  params.gate_up.stride = gate_up.stride(0);
  params.down.data = down.data();
  params.down.stride = down.stride(0);
  params.num_tokens = x.size(0);
  params.x_stride = x.stride(0);
  params.logits_stride = router_logits.stride(0);
  params.hidden_size = static_cast<int32_t>(x.size(1));
  params.inner_size = static_cast<int32_t>(num_inner);
  params.num_experts = static_cast<int32_t>(num_experts);
  params.num_chosen = static_cast<int32_t>(num_chosen);
  params.renormalise = renormalise;
  return params;
}

ExpertMlpParams expert_mlp_params(const Tensor& x_tensor, const Tensor& router_logits, const Tensor& gate_up_tensor,
                                  const Tensor& down_tensor, int64_t num_chosen, bool renormalise) {
  constexpr const char* op = "expert_mlp";
  const TensorArg x(op, "x", x_tensor), gate_up(op, "gate_up", gate_up_tensor), down(op, "down", down_tensor);
  x.expect_shape("[num_tokens, hidden_size]", {kAny, kAny});
  const DType weight_dtype = gate_up.expect_shape("[num_experts * 2 * inner_size, hidden_size]", {kAny, x.size(1)})
                                 .expect_device_of(x)
                                 .expect_contiguous_last_dim()
                                 .expect_floating();
  down.expect_shape("[num_experts * hidden_size, inner_size]", {kAny, kAny})
      .expect_dtype_of(gate_up)
      .expect_device_of(x)
      .expect_contiguous_last_dim();
  ExpertMlpParams params =
      fill_experts(op, x, {op, "router_logits", router_logits}, gate_up, down, down.size(1), num_chosen, renormalise);
  const int64_t num_experts = params.num_experts, num_inner = down.size(1);
  if (gate_up.size(0) != num_experts * 2 * num_inner) {
    fail(op, ": gate_up must have ", num_experts, " * 2 * ", num_inner, " rows, for the columns of down, got ",
         gate_up.size(0));
  }
  if (down.size(0) != num_experts * x.size(1)) {
    fail(op, ": down must have ", num_experts, " * ", x.size(1), " rows, for the columns of x, got ", down.size(0));
  }
  params.gate_up.dtype = params.down.dtype = weight_dtype;
  return params;
}

}  // namespace cudaprefill::ops
