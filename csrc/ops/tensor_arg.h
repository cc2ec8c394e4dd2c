// A tensor argument of an op, by name: its metadata read once, and checks that raise with that name and both values.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <initializer_list>
#include <sstream>
#include <stdexcept>

#include "csrc/ops/params.h"

namespace cudaprefill::ops {

using torch::stable::Tensor;

// Becomes a ValueError in Python.
template <class... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  std::ostringstream message;
  (message << ... << parts);
  throw std::invalid_argument(message.str());
}

class TensorArg {
 public:
  TensorArg(const char* op, const char* name, const Tensor& tensor);

  void* data() const { return data_; }
  int64_t dim() const { return dim_; }
  int64_t size(int64_t d) const { return sizes_[d]; }
  int64_t stride(int64_t d) const { return strides_[d]; }

  // The shape must be the given one, where kAny leaves a size free; `meaning` spells the shape for the message.
  static constexpr int64_t kAny = -1;
  const TensorArg& expect_shape(const char* meaning, std::initializer_list<int64_t> shape) const;
  const TensorArg& expect_float32() const;
  const TensorArg& expect_uint8() const;
  const TensorArg& expect_int32() const;
  const TensorArg& expect_int64() const;
  const TensorArg& expect_dtype_of(const TensorArg& other) const;
  const TensorArg& expect_device_of(const TensorArg& other) const;
  const TensorArg& expect_contiguous_last_dim() const;
  const TensorArg& expect_contiguous() const;
  DType expect_floating() const;     // float32, bfloat16 or float16
  DType expect_cache_dtype() const;  // one of these or float8_e4m3fn

 private:
  const TensorArg& expect_dtype(int32_t torch_dtype) const;
  [[noreturn]] void fail_shape(const char* meaning, std::initializer_list<int64_t> shape) const;

  const char* op_;
  const char* name_;
  void* data_ = nullptr;
  int64_t dim_ = 0;
  int64_t* sizes_ = nullptr;
  int64_t* strides_ = nullptr;
  int32_t torch_dtype_ = 0;
  int32_t device_type_ = 0;
  int32_t device_index_ = 0;
};

}  // namespace cudaprefill::ops
