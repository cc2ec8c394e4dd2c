// rms_norm and add_rms_norm: one block a row, which is read once and stays in registers between the sum and the
// scaling.
#include <cuda_runtime.h>

#include <algorithm>
#include <launch.cuh>

#include "csrc/cuda/checks.h"
#include "csrc/cuda/kernels.h"
#include "csrc/cuda/reduce.cuh"
#include "csrc/cuda/stream_order.cuh"
#include "csrc/cuda/vector.cuh"

namespace cudaprefill::cuda {
namespace {

constexpr int kMaxThreads = 1024;
constexpr int kMaxVectorsPerThread = 4;

// A value as memory keeps it: what is normed after an addition is the stored sum.
template <class Element>
__device__ __forceinline__ void round_vector(float (&values)[kVectorSize<Element>]) {
  if constexpr (sizeof(Element) == 2) {
#pragma unroll
    for (int i = 0; i < kVectorSize<Element>; i += 2) {
      ptx::unpack<Element>(ptx::pack<Element>(values[i], values[i + 1]), values[i], values[i + 1]);
    }
  }
}

template <class Element, int vectors_per_thread>
__global__ void __launch_bounds__(kMaxThreads, 1) rms_norm_kernel(const __grid_constant__ RmsNormParams params) {
  constexpr int kVector = kVectorSize<Element>;
  const int64_t row = blockIdx.x;
  const auto* x = static_cast<const Element*>(params.x) + row * params.x_stride;
  auto* residual = static_cast<Element*>(params.residual) + row * params.residual_stride;
  const auto* weight = static_cast<const Element*>(params.weight);
  auto* out = static_cast<Element*>(params.out) + row * params.out_stride;
  const auto column_of = [&](int v) {
    return (v * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x)) * kVector;
  };

  enter_stream();
  float values[vectors_per_thread][kVector] = {};
  float sum_of_squares = 0;
#pragma unroll
  for (int v = 0; v < vectors_per_thread; ++v) {
    const int column = column_of(v);
    if (column >= params.hidden_size) continue;
    load_vector(x + column, values[v]);
    if (params.residual) {
      float before[kVector];
      load_vector(residual + column, before);
#pragma unroll
      for (int i = 0; i < kVector; ++i) values[v][i] += before[i];
      store_vector(residual + column, values[v]);
      round_vector<Element>(values[v]);
    }
#pragma unroll
    for (int i = 0; i < kVector; ++i) sum_of_squares += values[v][i] * values[v][i];
  }
  const float mean = block_sum(sum_of_squares, ptx::shared_base()) / static_cast<float>(params.hidden_size);
  const float scale = rsqrtf(mean + params.epsilon);
#pragma unroll
  for (int v = 0; v < vectors_per_thread; ++v) {
    const int column = column_of(v);
    if (column >= params.hidden_size) continue;
    float factor[kVector];
    load_vector(weight + column, factor);
#pragma unroll
    for (int i = 0; i < kVector; ++i) factor[i] *= values[v][i] * scale;
    store_vector(out + column, factor);
  }
}

}  // namespace

void rms_norm(const RmsNormParams& params, Device& device) {
  const char* op = params.residual ? "add_rms_norm" : "rms_norm";
  require_whole_vectors(op, "hidden_size", params.hidden_size, params.dtype);
  require_alignment(op, "x", params.x, {params.x_stride}, params.dtype);
  require_alignment(op, "weight", params.weight, {}, params.dtype);
  if (params.residual) require_alignment(op, "residual", params.residual, {params.residual_stride}, params.dtype);
  if (params.num_rows == 0 || params.hidden_size == 0) return;
  with_element_type(params.dtype, [&]<class Element>(Element) {
    const int vectors = params.hidden_size / kVectorSize<Element>;
    require(vectors <= kMaxThreads * kMaxVectorsPerThread, op, ": hidden_size must be at most ",
            kMaxThreads * kMaxVectorsPerThread * kVectorSize<Element>, ", got ", params.hidden_size);
    const int rounded = (vectors + kWarpSize - 1) / kWarpSize * kWarpSize;
    const int threads = std::min(rounded, kMaxThreads);
    const LaunchShape shape{dim3{static_cast<unsigned>(params.num_rows), 1, 1}, static_cast<unsigned>(threads),
                            threads / kWarpSize * sizeof(float)};
    const auto kernel =
        vectors <= threads ? rms_norm_kernel<Element, 1> : rms_norm_kernel<Element, kMaxVectorsPerThread>;
    launch(op, kernel, shape, params, device.stream());
  });
}

}  // namespace cudaprefill::cuda
