#include "csrc/ops/register_ops.h"

#include <array>

namespace cudaprefill::ops {

namespace {

Tensor empty_matrix_of(int32_t dtype, int64_t rows, int64_t columns, const Tensor& like) {
  const std::array<int64_t, 2> sizes{rows, columns};
  const std::array<int64_t, 2> strides{columns, 1};
  int32_t device_type, device_index;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(like.get(), &device_type));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_index(like.get(), &device_index));
  AtenTensorHandle handle;
  TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(static_cast<int64_t>(sizes.size()), sizes.data(), strides.data(),
                                                  dtype, device_type, device_index, &handle));
  return Tensor(handle);
}

}  // namespace

Tensor empty_matrix(int64_t rows, int64_t columns, const Tensor& like) {
  int32_t dtype;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(like.get(), &dtype));
  return empty_matrix_of(dtype, rows, columns, like);
}

Tensor empty_float_matrix(int64_t rows, int64_t columns, const Tensor& like) {
  return empty_matrix_of(aoti_torch_dtype_float32(), rows, columns, like);
}

}  // namespace cudaprefill::ops
