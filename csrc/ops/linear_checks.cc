// The argument checks of `linear`, whose weights are floats, and of the ops on weights in blocks.
#include "csrc/ops/checks.h"

namespace cudaprefill::ops {

constexpr int64_t kAny = TensorArg::kAny;

namespace {

// What is the same whatever the weights are stored as.
void fill_linear(const char* op, LinearParams& params, const TensorArg& x, const TensorArg& weight,
                 const std::optional<Tensor>& bias) {
  if (bias) {
    params.bias = static_cast<const float*>(TensorArg(op, "bias", *bias)
                                                .expect_shape("[num_outputs]", {weight.size(0)})
                                                .expect_float32()
                                                .expect_device_of(x)
                                                .expect_contiguous()
                                                .data());
  }
  params.x = static_cast<const float*>(x.data());
  params.weight = weight.data();
  params.num_rows = x.size(0);
  params.num_inputs = x.size(1);
  params.num_outputs = weight.size(0);
  params.x_stride = x.stride(0);
  params.weight_stride = weight.stride(0);
}

BlockFormat expect_block_format(const char* op, int64_t number) {
  for (const BlockFormat format :
       {BlockFormat::kQ4_0, BlockFormat::kQ4_1, BlockFormat::kQ8_0, BlockFormat::kQ4_K, BlockFormat::kQ6_K}) {
    if (static_cast<int64_t>(format) == number) return format;
  }
  fail(op, ": block_format must be 2 (Q4_0), 3 (Q4_1), 8 (Q8_0), 12 (Q4_K) or 14 (Q6_K), got ", number);
}

}  // namespace

LinearParams linear_params(const Tensor& x_tensor, const Tensor& weight_tensor,
                           const std::optional<Tensor>& bias_tensor) {
  constexpr const char* op = "linear";
  const TensorArg x(op, "x", x_tensor), weight(op, "weight", weight_tensor);
  LinearParams params{};
  x.expect_shape("[rows, num_inputs]", {kAny, kAny}).expect_float32().expect_contiguous_last_dim();
  params.weight_dtype = weight.expect_shape("[num_outputs, num_inputs]", {kAny, x.size(1)})
                            .expect_device_of(x)
                            .expect_contiguous_last_dim()
                            .expect_floating();
  fill_linear(op, params, x, weight, bias_tensor);
  return params;
}

LinearParams linear_blocks_params(const Tensor& x_tensor, const Tensor& blocks_tensor, int64_t block_format,
                                  const std::optional<Tensor>& bias_tensor) {
  constexpr const char* op = "linear_blocks";
  const TensorArg x(op, "x", x_tensor), blocks(op, "blocks", blocks_tensor);
  LinearParams params{};
  params.block_format = expect_block_format(op, block_format);
  x.expect_shape("[rows, num_inputs]", {kAny, kAny}).expect_float32().expect_contiguous_last_dim();
  const BlockShape shape = block_shape(params.block_format);
  if (x.size(1) % shape.elements != 0) {
    fail(op, ": x has ", x.size(1), " columns, but blocks hold ", shape.elements, " elements of a row each");
  }
  blocks.expect_shape("[num_outputs, bytes of num_inputs elements]", {kAny, x.size(1) / shape.elements * shape.bytes})
      .expect_uint8()
      .expect_device_of(x)
      .expect_contiguous_last_dim();
  fill_linear(op, params, x, blocks, bias_tensor);
  return params;
}

DequantiseRowsParams dequantise_rows_params(const Tensor& blocks_tensor, int64_t block_format,
                                            const Tensor& row_ids_tensor) {
  constexpr const char* op = "dequantise_rows";
  const TensorArg blocks(op, "blocks", blocks_tensor), row_ids(op, "row_ids", row_ids_tensor);
  DequantiseRowsParams params{};
  params.block_format = expect_block_format(op, block_format);
  const BlockShape shape = block_shape(params.block_format);
  blocks.expect_shape("[rows, bytes]", {kAny, kAny}).expect_uint8().expect_contiguous_last_dim();
  if (blocks.size(1) % shape.bytes != 0) {
    fail(op, ": blocks has rows of ", blocks.size(1), " bytes, which must be whole blocks of ", shape.bytes);
  }
  row_ids.expect_shape("[rows]", {kAny}).expect_int64().expect_device_of(blocks).expect_contiguous();
  params.blocks = blocks.data();
  params.row_ids = static_cast<const int64_t*>(row_ids.data());
  params.num_rows = row_ids.size(0);
  params.num_columns = blocks.size(1) / shape.bytes * shape.elements;
  params.num_matrix_rows = blocks.size(0);
  params.row_bytes = blocks.stride(0);
  return params;
}

}  // namespace cudaprefill::ops
