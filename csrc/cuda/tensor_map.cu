// The driver makes tensor maps. Its function is asked for by name through the runtime, so nothing links libcuda.
#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <iterator>
#include <launch.cuh>
#include <stdexcept>
#include <string>

#include "csrc/cuda/tensor_map.h"

namespace cudaprefill {
namespace {

static_assert(sizeof(TensorMap) == sizeof(CUtensorMap) && alignof(TensorMap) >= alignof(CUtensorMap));

using Encode = decltype(&cuTensorMapEncodeTiled);

Encode find_encode() {
  constexpr const char* kName = "cuTensorMapEncodeTiled";
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
#if CUDART_VERSION >= 12050
  constexpr unsigned kSince = 12000;
  check_cuda(kName, cudaGetDriverEntryPointByVersion(kName, &function, kSince, cudaEnableDefault, &found));
#else
  check_cuda(kName, cudaGetDriverEntryPoint(kName, &function, cudaEnableDefault, &found));
#endif
  if (found != cudaDriverEntryPointSuccess || !function) {
    throw std::runtime_error(std::string(kName) + ": the driver does not have it");
  }
  return reinterpret_cast<Encode>(function);
}

}  // namespace

TensorMap encode_tensor_map(const TensorShape& shape) {
  static const Encode encode = find_encode();
  constexpr CUtensorMapSwizzle kSwizzles[] = {CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_SWIZZLE_32B,
                                              CU_TENSOR_MAP_SWIZZLE_64B, CU_TENSOR_MAP_SWIZZLE_128B};
  cuuint32_t element_strides[TensorShape::kMaxRank];
  std::fill(std::begin(element_strides), std::end(element_strides), 1u);
  cuuint64_t extent[TensorShape::kMaxRank], strides[TensorShape::kMaxRank - 1];
  std::copy(std::begin(shape.extent), std::end(shape.extent), extent);
  std::copy(std::begin(shape.stride_bytes), std::end(shape.stride_bytes), strides);

  CUtensorMap map;
  // Copied bit by bit, so any 16-bit format does for all.
  const CUresult result = encode(&map, CU_TENSOR_MAP_DATA_TYPE_UINT16, static_cast<cuuint32_t>(shape.rank),
                                 const_cast<void*>(shape.data), extent, strides, shape.box, element_strides,
                                 CU_TENSOR_MAP_INTERLEAVE_NONE, kSwizzles[static_cast<int>(shape.swizzle)],
                                 CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    throw std::runtime_error("cuTensorMapEncodeTiled: error " + std::to_string(static_cast<int>(result)));
  }
  TensorMap copy;
  static_assert(sizeof(copy.words) == sizeof(map.opaque));
  std::copy(std::begin(map.opaque), std::end(map.opaque), copy.words);
  return copy;
}

}  // namespace cudaprefill
