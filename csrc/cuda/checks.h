// What the kernels ask of their arguments: 16-byte accesses need 16-byte alignment.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <sstream>
#include <stdexcept>

#include "csrc/ops/params.h"

namespace cudaprefill::cuda {

constexpr int kVectorBytes = 16;

template <class... Parts>
void require(bool condition, const Parts&... parts) {
  if (condition) return;
  std::ostringstream message;
  (message << ... << parts);
  throw std::invalid_argument(message.str());
}

inline void require_cache_dtype(const char* op, DType dtype, DType kv_dtype) {
  require(dtype == kv_dtype || kv_dtype == DType::kFloat8, op,
          ": on a GPU the caches must have the dtype of the activations, or be float8_e4m3fn");
}

// The address and every stride, and with them every row, must begin at a multiple of 16 bytes.
inline void require_alignment(const char* op, const char* name, const void* data,
                              std::initializer_list<int64_t> strides, DType dtype) {
  require(reinterpret_cast<uintptr_t>(data) % kVectorBytes == 0, op, ": ", name, " must begin at a multiple of ",
          kVectorBytes, " bytes");
  const int64_t vector_size = kVectorBytes / element_bytes(dtype);
  for (const int64_t stride : strides) {
    require(stride % vector_size == 0, op, ": ", name, " must have strides that are multiples of ", vector_size,
            " elements, got ", stride);
  }
}

inline void require_alignment(const char* op, const char* name, const HeadRows& rows, DType dtype) {
  require_alignment(op, name, rows.data, {rows.token_stride, rows.head_stride}, dtype);
}

inline void require_alignment(const char* op, const char* name, const PagedCache& cache, DType dtype) {
  require_alignment(op, name, cache.data, {cache.block_stride, cache.head_stride, cache.slot_stride}, dtype);
}

// A row of `size` elements must be whole vectors.
inline void require_whole_vectors(const char* op, const char* name, int64_t size, DType dtype) {
  const int64_t vector_size = kVectorBytes / element_bytes(dtype);
  require(size % vector_size == 0, op, ": ", name, " must be a multiple of ", vector_size, ", got ", size);
}

}  // namespace cudaprefill::cuda
