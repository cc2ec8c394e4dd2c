// The argument checks of `add_lora`.
#include <limits>

#include "csrc/ops/checks.h"

namespace cudaprefill::ops {

AddLoraParams add_lora_params(const Tensor& out_tensor, const Tensor& x_tensor, const Tensor& row_ids_tensor,
                              const Tensor& row_starts_tensor, const Tensor& parts_tensor,
                              const Tensor& scales_tensor) {
  constexpr const char* op = "add_lora";
  constexpr int64_t kAny = TensorArg::kAny;
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  const TensorArg out(op, "out", out_tensor), x(op, "x", x_tensor);
  const TensorArg row_ids(op, "row_ids", row_ids_tensor), row_starts(op, "row_starts", row_starts_tensor);
  const TensorArg parts(op, "parts", parts_tensor), scales(op, "scales", scales_tensor);
  AddLoraParams params{};
  params.dtype = out.expect_shape("[rows, num_outputs]", {kAny, kAny}).expect_contiguous_last_dim().expect_floating();
  x.expect_shape("[rows, num_inputs]", {out.size(0), kAny})
      .expect_dtype_of(out)
      .expect_device_of(out)
      .expect_contiguous_last_dim();
  row_ids.expect_shape("[rows of adapters]", {kAny}).expect_int32().expect_device_of(out).expect_contiguous();
  parts.expect_shape("[num_adapters, num_parts, fields]", {kAny, kAny, kLoraPartFields})
      .expect_int64()
      .expect_device_of(out)
      .expect_contiguous();
  row_starts.expect_shape("[num_adapters + 1]", {parts.size(0) + 1})
      .expect_int32()
      .expect_device_of(out)
      .expect_contiguous();
  scales.expect_shape("[num_adapters, num_parts]", {parts.size(0), parts.size(1)})
      .expect_float32()
      .expect_device_of(out)
      .expect_contiguous();
  if (out.size(0) > kMost) fail(op, ": out must have at most ", kMost, " rows, got ", out.size(0));
  if (parts.size(0) > kMost || parts.size(1) > kMost) {
    fail(op, ": parts must have at most ", kMost, " adapters and parts, got ", parts.size(0), " and ", parts.size(1));
  }

  params.x = x.data();
  params.out = out.data();
  params.row_ids = static_cast<const int32_t*>(row_ids.data());
  params.row_starts = static_cast<const int32_t*>(row_starts.data());
  params.parts = static_cast<const LoraPart*>(parts.data());
  params.scales = static_cast<const float*>(scales.data());
  params.num_rows = out.size(0);
  params.num_row_ids = row_ids.size(0);
  params.num_inputs = x.size(1);
  params.num_outputs = out.size(1);
  params.x_stride = x.stride(0);
  params.out_stride = out.stride(0);
  params.num_adapters = static_cast<int32_t>(parts.size(0));
  params.num_parts = static_cast<int32_t>(parts.size(1));
  return params;
}

}  // namespace cudaprefill::ops
