// The description of a tensor in global memory by which cp.async.bulk.tensor finds a box of it, made on the host.
#pragma once

#include <cstdint>

namespace cudaprefill {

// CUtensorMap of cuda.h, which is as opaque.
struct alignas(128) TensorMap {
  uint64_t words[16];
};

// How the 16-byte chunks of a box lie in shared memory: unchanged, or bits 4.. of the address exchanged by bits 7..
// with an exclusive or, one, two or three of them. The inner extent of the box is at most the number in the name.
enum class TensorSwizzle : int32_t { kNone = 0, k32Bytes = 1, k64Bytes = 2, k128Bytes = 3 };

// Up to five dimensions, innermost first, of 16-bit elements. Element strides are 1, and what lies outside is zero.
struct TensorShape {
  static constexpr int kMaxRank = 5;

  const void* data;
  int32_t rank;
  uint64_t extent[kMaxRank];            // elements
  uint64_t stride_bytes[kMaxRank - 1];  // of dimensions 1 and up; the innermost is contiguous
  uint32_t box[kMaxRank];               // elements
  TensorSwizzle swizzle;
};

// As cuTensorMapEncodeTiled. Raises std::invalid_argument or std::runtime_error with the reason.
TensorMap encode_tensor_map(const TensorShape& shape);

}  // namespace cudaprefill
