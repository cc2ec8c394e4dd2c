#include "csrc/ops/tensor_arg.h"

#include <algorithm>
#include <span>
#include <string>

namespace cudaprefill::ops {
namespace {

// The shim hands out dtype codes by function, for they may differ between releases of torch; they are asked for once.
const int32_t kFloat32 = aoti_torch_dtype_float32();
const int32_t kBFloat16 = aoti_torch_dtype_bfloat16();
const int32_t kFloat16 = aoti_torch_dtype_float16();
const int32_t kFloat8 = aoti_torch_dtype_float8_e4m3fn();
const int32_t kUint8 = aoti_torch_dtype_uint8();
const int32_t kInt32 = aoti_torch_dtype_int32();
const int32_t kInt64 = aoti_torch_dtype_int64();

std::string dtype_name(int32_t code) {
  if (code == kFloat32) return "float32";
  if (code == kBFloat16) return "bfloat16";
  if (code == kFloat16) return "float16";
  if (code == kFloat8) return "float8_e4m3fn";
  if (code == kUint8) return "uint8";
  if (code == kInt32) return "int32";
  if (code == kInt64) return "int64";
  if (code == aoti_torch_dtype_float64()) return "float64";
  if (code == aoti_torch_dtype_int16()) return "int16";
  if (code == aoti_torch_dtype_int8()) return "int8";
  if (code == aoti_torch_dtype_bool()) return "bool";
  return "dtype code " + std::to_string(code);
}

std::string device_name(int32_t type, int32_t index) {
  if (type == aoti_torch_device_type_cpu()) return "cpu";
  const std::string kind = type == aoti_torch_device_type_cuda() ? "cuda" : "device type " + std::to_string(type);
  return kind + ":" + std::to_string(index);
}

std::string shape_text(std::span<const int64_t> sizes) {
  std::string text = "[";
  for (const int64_t size : sizes) {
    if (text.size() > 1) text += ", ";
    text += size == TensorArg::kAny ? "any" : std::to_string(size);
  }
  return text + "]";
}

}  // namespace

TensorArg::TensorArg(const char* op, const char* name, const Tensor& tensor) : op_(op), name_(name) {
  const AtenTensorHandle handle = tensor.get();
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_data_ptr(handle, &data_));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dim(handle, &dim_));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_sizes(handle, &sizes_));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_strides(handle, &strides_));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(handle, &torch_dtype_));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(handle, &device_type_));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_index(handle, &device_index_));
}

const TensorArg& TensorArg::expect_shape(const char* meaning, std::initializer_list<int64_t> shape) const {
  bool same = dim_ == static_cast<int64_t>(shape.size());
  for (int64_t d = 0; same && d < dim_; ++d) same = shape.begin()[d] == kAny || shape.begin()[d] == sizes_[d];
  if (!same) fail_shape(meaning, shape);
  return *this;
}

void TensorArg::fail_shape(const char* meaning, std::initializer_list<int64_t> shape) const {
  fail(op_, ": ", name_, " must be ", meaning, " = ", shape_text({shape.begin(), shape.size()}), ", got ",
       shape_text({sizes_, static_cast<size_t>(dim_)}));
}

const TensorArg& TensorArg::expect_dtype(int32_t torch_dtype) const {
  if (torch_dtype_ != torch_dtype) {
    fail(op_, ": ", name_, " must be ", dtype_name(torch_dtype), ", got ", dtype_name(torch_dtype_));
  }
  return *this;
}

const TensorArg& TensorArg::expect_float32() const { return expect_dtype(kFloat32); }
const TensorArg& TensorArg::expect_uint8() const { return expect_dtype(kUint8); }
const TensorArg& TensorArg::expect_int32() const { return expect_dtype(kInt32); }
const TensorArg& TensorArg::expect_int64() const { return expect_dtype(kInt64); }

const TensorArg& TensorArg::expect_dtype_of(const TensorArg& other) const {
  if (torch_dtype_ != other.torch_dtype_) {
    fail(op_, ": ", name_, " must have the dtype of ", other.name_, ", ", dtype_name(other.torch_dtype_), ", got ",
         dtype_name(torch_dtype_));
  }
  return *this;
}

const TensorArg& TensorArg::expect_device_of(const TensorArg& other) const {
  if (device_type_ != other.device_type_ || device_index_ != other.device_index_) {
    fail(op_, ": ", name_, " must be on the device of ", other.name_, ", ",
         device_name(other.device_type_, other.device_index_), ", got ", device_name(device_type_, device_index_));
  }
  return *this;
}

const TensorArg& TensorArg::expect_contiguous_last_dim() const {
  if (dim_ > 0 && sizes_[dim_ - 1] > 1 && strides_[dim_ - 1] != 1) {
    fail(op_, ": ", name_, " must be contiguous in its last dimension (stride 1), got stride ", strides_[dim_ - 1]);
  }
  return *this;
}

const TensorArg& TensorArg::expect_contiguous() const {
  int64_t expected = 1;
  for (int64_t d = dim_ - 1; d >= 0; --d) {
    if (sizes_[d] > 1 && strides_[d] != expected) {
      fail(op_, ": ", name_, " must be contiguous (stride ", expected, " in dimension ", d, "), got stride ",
           strides_[d]);
    }
    expected *= std::max<int64_t>(sizes_[d], 1);
  }
  return *this;
}

DType TensorArg::expect_floating() const {
  if (torch_dtype_ == kFloat32) return DType::kFloat32;
  if (torch_dtype_ == kBFloat16) return DType::kBFloat16;
  if (torch_dtype_ == kFloat16) return DType::kFloat16;
  fail(op_, ": ", name_, " must be float32, bfloat16 or float16, got ", dtype_name(torch_dtype_));
}

DType TensorArg::expect_cache_dtype() const {
  if (torch_dtype_ == kFloat8) return DType::kFloat8;
  if (torch_dtype_ == kFloat32 || torch_dtype_ == kBFloat16 || torch_dtype_ == kFloat16) return expect_floating();
  fail(op_, ": ", name_, " must be float32, bfloat16, float16 or float8_e4m3fn, got ", dtype_name(torch_dtype_));
}

}  // namespace cudaprefill::ops
