// The emulation of csrc/cuda/tensor_map.cu: the same rules, and a map that simply holds the shape.
#include "csrc/cuda/tensor_map.h"

#include <cstring>
#include <sstream>
#include <stdexcept>

#include "csrc/emu/tensor_map.h"

namespace cudaprefill {
namespace emu {
namespace {

// 128 bytes, as the real one.
struct PackedShape {
  const void* data;
  uint64_t stride_bytes[TensorShape::kMaxRank - 1];
  uint64_t extent[TensorShape::kMaxRank];
  uint32_t box[TensorShape::kMaxRank];
  int16_t rank, swizzle;
};
static_assert(sizeof(PackedShape) <= sizeof(TensorMap));

}  // namespace

TensorShape shape_of(const TensorMap& map) {
  PackedShape packed;
  std::memcpy(&packed, map.words, sizeof(packed));
  TensorShape shape{};
  shape.data = packed.data;
  shape.rank = packed.rank;
  shape.swizzle = static_cast<TensorSwizzle>(packed.swizzle);
  std::memcpy(shape.extent, packed.extent, sizeof(shape.extent));
  std::memcpy(shape.stride_bytes, packed.stride_bytes, sizeof(shape.stride_bytes));
  std::memcpy(shape.box, packed.box, sizeof(shape.box));
  return shape;
}

}  // namespace emu

// The requirements that the driver's documentation of cuTensorMapEncodeTiled lists, for 16-bit elements, element
// strides of 1 and no interleaving.
TensorMap encode_tensor_map(const TensorShape& shape) {
  constexpr uint64_t kElementBytes = 2, kMostExtent = uint64_t{1} << 32, kMostStride = uint64_t{1} << 40;
  constexpr uint32_t kMostBox = 256, kChunk = 16;
  const auto require = [](bool condition, const char* what, int dimension, uint64_t value) {
    if (condition) return;
    std::ostringstream text;
    text << "tensor map: " << what << " " << dimension << " is " << value;
    throw std::invalid_argument(text.str());
  };
  require(shape.rank >= 1 && shape.rank <= TensorShape::kMaxRank, "the rank, not in 1..5 ", 0, shape.rank);
  require(reinterpret_cast<uintptr_t>(shape.data) % kChunk == 0, "the address, no multiple of 16, of dimension", 0,
          reinterpret_cast<uintptr_t>(shape.data));
  for (int i = 0; i < shape.rank; ++i) {
    require(shape.extent[i] >= 1 && shape.extent[i] <= kMostExtent, "the extent, not in 1..2^32, of dimension", i,
            shape.extent[i]);
    require(shape.box[i] >= 1 && shape.box[i] <= kMostBox, "the box, not in 1..256, of dimension", i, shape.box[i]);
    if (i == 0) continue;
    const uint64_t stride = shape.stride_bytes[i - 1];
    require(stride % kChunk == 0 && stride < kMostStride, "the stride, no multiple of 16 below 2^40, of dimension", i,
            stride);
  }
  const uint64_t inner_bytes = shape.box[0] * kElementBytes;
  require(inner_bytes % kChunk == 0, "the inner bytes of the box, no multiple of 16, of dimension", 0, inner_bytes);
  const uint64_t span = shape.swizzle == TensorSwizzle::kNone ? inner_bytes : 16u << static_cast<int>(shape.swizzle);
  require(inner_bytes <= span, "the inner bytes of the box, more than the swizzle spans, of dimension", 0, inner_bytes);

  emu::PackedShape packed{};
  packed.data = shape.data;
  packed.rank = static_cast<int16_t>(shape.rank);
  packed.swizzle = static_cast<int16_t>(shape.swizzle);
  std::memcpy(packed.extent, shape.extent, sizeof(packed.extent));
  std::memcpy(packed.stride_bytes, shape.stride_bytes, sizeof(packed.stride_bytes));
  std::memcpy(packed.box, shape.box, sizeof(packed.box));
  TensorMap map{};
  std::memcpy(map.words, &packed, sizeof(packed));
  return map;
}

}  // namespace cudaprefill
