// Split-KV: several thread blocks attend to parts of the keys of the same rows; their results are merged exactly.
//
// A part leaves its normalised output and the logarithm of its sum of weights. The merged row is the sum of the outputs
// weighted by 2^(log - log of all sums); a part without any key has the logarithm -inf and is not even read.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <ptx/convert.cuh>
#include <ptx/memory.cuh>

#include "csrc/cuda/attention/softmax.cuh"

namespace cudaprefill {

// A workspace of parts: out [parts, rows, head_size], log_sum [parts, rows].
struct Partials {
  float* out;
  float* log_sum;
  int rows;
  int head_size;

  __host__ __device__ static int64_t bytes(int64_t parts, int rows, int head_size) {
    return parts * rows * (head_size + 1) * static_cast<int64_t>(sizeof(float));
  }
  __host__ __device__ static Partials in(void* workspace, int64_t parts, int rows, int head_size) {
    auto* out = static_cast<float*>(workspace);
    return {out, out + parts * rows * head_size, rows, head_size};
  }
  __device__ __forceinline__ float* out_row(int64_t part, int row) const {
    return out + (part * rows + row) * head_size;
  }
  __device__ __forceinline__ float* log_sum_of(int64_t part, int row) const { return log_sum + part * rows + row; }
};

// Merges two neighbouring elements of one row over `count` parts, `stride` apart.
__device__ __forceinline__ float2 merge_parts(const Partials& partials, int64_t first_part, int64_t stride, int count,
                                              int row, int element) {
  float highest = kMinusInfinity;
  for (int i = 0; i < count; ++i) {
    highest = fmaxf(highest, ptx::load_global(partials.log_sum_of(first_part + i * stride, row)));
  }
  float2 merged{0, 0};
  float weights = 0;
  for (int i = 0; i < count; ++i) {
    const float log_sum = ptx::load_global(partials.log_sum_of(first_part + i * stride, row));
    if (log_sum == kMinusInfinity) continue;
    const float weight = ptx::exp2_fast(log_sum - highest);
    const float2 part =
        ptx::load_global(reinterpret_cast<const float2*>(partials.out_row(first_part + i * stride, row) + element));
    merged.x += weight * part.x;
    merged.y += weight * part.y;
    weights += weight;
  }
  const float scale = weights > 0 ? 1 / weights : 0.0f;
  return {merged.x * scale, merged.y * scale};
}

}  // namespace cudaprefill
