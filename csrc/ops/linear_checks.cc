// The argument checks of `linear` and `gated_linear`, whose weights are floats, and of the ops on weights in groups of
// blocks.
#include "csrc/ops/checks.h"
#include "csrc/ops/expert_checks.h"

namespace cudaprefill::ops {

constexpr int64_t kAny = TensorArg::kAny;

namespace {

// What is the same whatever the weights are stored as.
void fill_linear(const char* op, LinearParams& params, const TensorArg& x, const TensorArg& weight, int64_t num_outputs,
                 const std::optional<Tensor>& bias) {
  if (bias) {
    params.bias = static_cast<const float*>(TensorArg(op, "bias", *bias)
                                                .expect_shape("[num_outputs]", {num_outputs})
                                                .expect_float32()
                                                .expect_device_of(x)
                                                .expect_contiguous()
                                                .data());
  }
  params.x = static_cast<const float*>(x.data());
  params.weight = weight.data();
  params.num_rows = x.size(0);
  params.num_inputs = x.size(1);
  params.num_outputs = num_outputs;
  params.x_stride = x.stride(0);
  params.weight_stride = weight.stride(0);
}

BlockFormat expect_block_format(const char* op, const char* name, int64_t number) {
  for (const BlockFormat format :
       {BlockFormat::kQ4_0, BlockFormat::kQ4_1, BlockFormat::kQ8_0, BlockFormat::kQ4_K, BlockFormat::kQ6_K}) {
    if (static_cast<int64_t>(format) == number) return format;
  }
  fail(op, ": ", name, " must be 2 (Q4_0), 3 (Q4_1), 8 (Q8_0), 12 (Q4_K) or 14 (Q6_K), got ", number);
}

// The groups of blocks of a matrix.
const TensorArg& expect_groups(const char* op, const TensorArg& groups, BlockFormat format, int64_t num_rows,
                               int64_t num_columns) {
  const BlockShape shape = block_shape(format);
  if (num_columns % shape.elements != 0) {
    fail(op, ": a row has ", num_columns, " elements, but blocks hold ", shape.elements, " of them each");
  }
  return groups
      .expect_shape("[num_rows / 16 rounded up, bytes of a group]",
                    {(num_rows + kGroupRows - 1) / kGroupRows, group_bytes(format, num_columns)})
      .expect_uint8()
      .expect_contiguous_last_dim();
}

int32_t expect_activation_bits(const char* op, int64_t bits) {
  if (bits != 8 && bits != 16 && bits != 32) fail(op, ": activation_bits must be 8, 16 or 32, got ", bits);
  return static_cast<int32_t>(bits);
}

Activation expect_activation(const char* op, const std::string& name) {
  if (name == "silu") return Activation::kSilu;
  if (name == "gelu_tanh") return Activation::kGeluTanh;
  fail(op, ": activation must be silu or gelu_tanh, got ", name);
}

// In 32 bits, so that no product of sizes leaves 64.
int64_t expect_count(const char* op, const char* name, int64_t value) {
  if (value < 0) fail(op, ": ", name, " must be at least 0, got ", value);
  if (value > INT32_MAX) fail(op, ": ", name, " must be at most ", INT32_MAX, ", got ", value);
  return value;
}

// Of a weight in floats.
LinearParams linear_params(const char* op, const TensorArg& x, const TensorArg& weight,
                           const std::optional<Tensor>& bias) {
  LinearParams params{};
  x.expect_shape("[rows, num_inputs]", {kAny, kAny}).expect_float32().expect_contiguous_last_dim();
  params.weight_dtype = weight.expect_shape("[num_outputs, num_inputs]", {kAny, x.size(1)})
                            .expect_device_of(x)
                            .expect_contiguous_last_dim()
                            .expect_floating();
  fill_linear(op, params, x, weight, weight.size(0), bias);
  return params;
}

// Of a weight in groups.
LinearParams linear_blocks_params(const char* op, const TensorArg& x, const TensorArg& groups, int64_t block_format,
                                  int64_t num_outputs, const std::optional<Tensor>& bias, int64_t activation_bits) {
  LinearParams params{};
  params.block_format = expect_block_format(op, "block_format", block_format);
  params.activation_bits = expect_activation_bits(op, activation_bits);
  x.expect_shape("[rows, num_inputs]", {kAny, kAny}).expect_float32().expect_contiguous_last_dim();
  expect_groups(op, groups, params.block_format, num_outputs, x.size(1)).expect_device_of(x);
  fill_linear(op, params, x, groups, num_outputs, bias);
  return params;
}

}  // namespace

LinearParams linear_params(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) {
  constexpr const char* op = "linear";
  return linear_params(op, {op, "x", x}, {op, "weight", weight}, bias);
}

LinearParams linear_blocks_params(const Tensor& x, const Tensor& groups, int64_t block_format, int64_t num_outputs,
                                  const std::optional<Tensor>& bias, int64_t activation_bits) {
  constexpr const char* op = "linear_blocks";
  expect_count(op, "num_outputs", num_outputs);
  return linear_blocks_params(op, {op, "x", x}, {op, "groups", groups}, block_format, num_outputs, bias,
                              activation_bits);
}

GatedLinearParams gated_linear_params(const Tensor& x, const Tensor& gate_up_tensor, const std::string& activation,
                                      const std::optional<Tensor>& bias) {
  constexpr const char* op = "gated_linear";
  const TensorArg gate_up(op, "gate_up", gate_up_tensor);
  GatedLinearParams params{};
  params.activation = expect_activation(op, activation);
  gate_up.expect_shape("[2 * inner_size, num_inputs]", {kAny, kAny});
  if (gate_up.size(0) % 2 != 0) fail(op, ": gate_up must have an even number of rows, got ", gate_up.size(0));
  params.gate_up = linear_params(op, {op, "x", x}, gate_up, bias);
  return params;
}

GatedLinearParams gated_linear_blocks_params(const Tensor& x, const Tensor& groups, int64_t block_format,
                                             int64_t inner_size, const std::string& activation,
                                             const std::optional<Tensor>& bias, int64_t activation_bits) {
  constexpr const char* op = "gated_linear_blocks";
  GatedLinearParams params{};
  params.activation = expect_activation(op, activation);
  expect_count(op, "inner_size", inner_size);
  params.gate_up = linear_blocks_params(op, {op, "x", x}, {op, "groups", groups}, block_format, 2 * inner_size, bias,
                                        activation_bits);
  return params;
}

GroupBlocksParams group_blocks_params(const Tensor& blocks_tensor, int64_t block_format, const Tensor& groups_tensor) {
  constexpr const char* op = "group_blocks";
  const TensorArg blocks(op, "blocks", blocks_tensor), groups(op, "groups", groups_tensor);
  GroupBlocksParams params{};
  params.block_format = expect_block_format(op, "block_format", block_format);
  const BlockShape shape = block_shape(params.block_format);
  blocks.expect_shape("[rows, bytes]", {kAny, kAny}).expect_uint8().expect_contiguous_last_dim();
  if (blocks.size(1) % shape.bytes != 0) {
    fail(op, ": blocks has rows of ", blocks.size(1), " bytes, which must be whole blocks of ", shape.bytes);
  }
  params.num_rows = blocks.size(0);
  params.num_inputs = blocks.size(1) / shape.bytes * shape.elements;
  expect_groups(op, groups, params.block_format, params.num_rows, params.num_inputs).expect_device_of(blocks);
  params.blocks = static_cast<const uint8_t*>(blocks.data());
  params.groups = static_cast<uint8_t*>(groups.data());
  params.block_stride = blocks.stride(0);
  params.group_stride = groups.stride(0);
  return params;
}

DequantiseRowsParams dequantise_rows_params(const Tensor& groups_tensor, int64_t block_format, int64_t num_rows,
                                            int64_t num_columns, const Tensor& row_ids_tensor) {
  constexpr const char* op = "dequantise_rows";
  const TensorArg groups(op, "groups", groups_tensor), row_ids(op, "row_ids", row_ids_tensor);
  DequantiseRowsParams params{};
  params.block_format = expect_block_format(op, "block_format", block_format);
  params.num_matrix_rows = expect_count(op, "num_rows", num_rows);
  params.num_columns = expect_count(op, "num_columns", num_columns);
  expect_groups(op, groups, params.block_format, num_rows, num_columns);
  row_ids.expect_shape("[rows]", {kAny}).expect_int64().expect_device_of(groups).expect_contiguous();
  params.groups = static_cast<const uint8_t*>(groups.data());
  params.row_ids = static_cast<const int64_t*>(row_ids.data());
  params.num_rows = row_ids.size(0);
  params.group_stride = groups.stride(0);
  return params;
}

ExpertMlpParams expert_mlp_blocks_params(const Tensor& x_tensor, const Tensor& router_logits_tensor,
                                         const Tensor& gate_up_tensor, int64_t gate_up_format,
                                         const Tensor& down_tensor, int64_t down_format, int64_t inner_size,
                                         int64_t num_chosen, bool renormalise, int64_t activation_bits) {
  constexpr const char* op = "expert_mlp_blocks";
  const TensorArg x(op, "x", x_tensor), router_logits(op, "router_logits", router_logits_tensor);
  const TensorArg gate_up(op, "gate_up", gate_up_tensor), down(op, "down", down_tensor);
  const BlockFormat of_gate_up = expect_block_format(op, "gate_up_format", gate_up_format);
  const BlockFormat of_down = expect_block_format(op, "down_format", down_format);
  expect_count(op, "inner_size", inner_size);
  x.expect_shape("[num_tokens, hidden_size]", {kAny, kAny}).expect_float32();
  ExpertMlpParams params = fill_experts(op, x, router_logits, gate_up, down, inner_size, num_chosen, renormalise);
  // Blocks hold at least 32 elements of a row, and the rows of one matrix are the columns of the other: no group of
  // rows belongs to two experts.
  static_assert(block_shape(BlockFormat::kQ4_0).elements % kGroupRows == 0);
  const int64_t num_experts = params.num_experts;
  expect_groups(op, gate_up, of_gate_up, num_experts * 2 * inner_size, x.size(1)).expect_device_of(x);
  expect_groups(op, down, of_down, num_experts * x.size(1), inner_size).expect_device_of(x);
  params.gate_up.block_format = of_gate_up;
  params.down.block_format = of_down;
  params.activation_bits = expect_activation_bits(op, activation_bits);
  return params;
}

}  // namespace cudaprefill::ops
