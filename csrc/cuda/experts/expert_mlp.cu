// expert_mlp: each token chooses its experts; pairs of tokens and experts are sorted by expert; two grouped products;
// what the experts of a token made is added up. All sizes of the grid follow from the number of tokens, so that a
// captured graph serves whatever the router chooses.
#include <cuda_runtime.h>

#include <algorithm>
#include <launch.cuh>

#include "csrc/cuda/checks.h"
#include "csrc/cuda/experts/experts.h"
#include "csrc/cuda/experts/products.cuh"
#include "csrc/cuda/experts/routing.cuh"
#include "csrc/cuda/kernels.h"
#include "csrc/cuda/stream_order.cuh"
#include "csrc/cuda/vector.cuh"

namespace cudaprefill {
namespace {

constexpr int kPlainThreads = 128;  // a warp makes one output
constexpr int kSumThreads = 256;

// The products in float32, for models that are kept in it: no tensor cores. Grid: (pairs, outputs / warps).
template <bool gated>
__global__ void __launch_bounds__(kPlainThreads) plain_expert_kernel(const __grid_constant__ ExpertLaunch launch) {
  const ExpertMlpParams& params = launch.op;
  const int64_t pair = blockIdx.x;
  const int lane = threadIdx.x % kWarpSize;
  const int output = static_cast<int>(blockIdx.y) * (kPlainThreads / kWarpSize) + threadIdx.x / kWarpSize;
  const int num_outputs = gated ? params.inner_size : params.hidden_size;
  const int depth = gated ? params.hidden_size : params.inner_size;
  enter_stream();
  if (output >= num_outputs) return;
  const int64_t expert = ptx::load_global(launch.experts + pair);
  const float* input = gated ? static_cast<const float*>(params.x) + pair / params.num_chosen * params.x_stride
                             : static_cast<const float*>(launch.inner) + pair * params.inner_size;
  const auto product = [&](const ExpertMatrices& matrices, int64_t row) {
    const float* weights = static_cast<const float*>(matrices.data) + row * matrices.stride;
    float sum = 0;
    for (int k = 4 * lane; k < depth; k += 4 * kWarpSize) {
      float value[4], weight[4];
      load_vector(input + k, value);
      load_vector(weights + k, weight);
#pragma unroll
      for (int i = 0; i < 4; ++i) sum += value[i] * weight[i];
    }
    return group_sum(sum, kWarpSize);
  };
  if constexpr (gated) {
    const int64_t row = expert * 2 * num_outputs + output;
    const float gate = product(params.gate_up, row), up = product(params.gate_up, row + num_outputs);
    float* out = static_cast<float*>(launch.inner) + pair * num_outputs + output;
    if (lane == 0) ptx::store_global(out, cuda::activate<Activation::kSilu>(gate) * up);
  } else {
    const float sum = product(params.down, expert * num_outputs + output);
    if (lane == 0) ptx::store_global(static_cast<float*>(launch.outputs) + pair * num_outputs + output, sum);
  }
}

// A thread makes 16 bytes of the output. Grid: (tokens, hidden_size / ...).
template <class Element>
__global__ void __launch_bounds__(kSumThreads) sum_experts_kernel(const __grid_constant__ ExpertLaunch launch) {
  constexpr int kVector = kVectorSize<Element>;
  const ExpertMlpParams& params = launch.op;
  const int64_t token = blockIdx.x;
  const int column = (static_cast<int>(blockIdx.y) * kSumThreads + threadIdx.x) * kVector;
  enter_stream();
  if (column >= params.hidden_size) return;
  float sum[kVector] = {};
  for (int choice = 0; choice < params.num_chosen; ++choice) {
    const int64_t pair = token * params.num_chosen + choice;
    const float weight = ptx::load_global(launch.weights + pair);
    float values[kVector];
    load_vector(static_cast<const Element*>(launch.outputs) + pair * params.hidden_size + column, values);
#pragma unroll
    for (int i = 0; i < kVector; ++i) sum[i] += weight * values[i];
  }
  store_vector(static_cast<Element*>(params.out) + token * params.out_stride + column, sum);
}

unsigned blocks_for(int count, int of_block) { return static_cast<unsigned>((count + of_block - 1) / of_block); }

template <class Element>
void run_products(const ExpertLaunch& launch_params, cudaStream_t stream) {
  const ExpertMlpParams& params = launch_params.op;
  if constexpr (sizeof(Element) == 4) {
    constexpr int kOutputs = kPlainThreads / kWarpSize;
    const auto pairs = static_cast<unsigned>(launch_params.num_pairs);
    const LaunchShape gated{dim3{pairs, blocks_for(params.inner_size, kOutputs), 1}, kPlainThreads};
    launch("plain_expert_gated", plain_expert_kernel<true>, gated, launch_params, stream);
    const LaunchShape down{dim3{pairs, blocks_for(params.hidden_size, kOutputs), 1}, kPlainThreads};
    launch("plain_expert_down", plain_expert_kernel<false>, down, launch_params, stream);
  } else {
    launch("sort_experts", sort_experts_kernel, {dim3{1, 1, 1}, kSortThreads, kSortSharedBytes}, launch_params, stream);
    const auto tiles = static_cast<unsigned>(launch_params.max_tiles);
    const LaunchShape gated{dim3{tiles, blocks_for(params.inner_size, kOutputsOfBlock<true>), 1}, kProductThreads,
                            kProductSharedBytes};
    launch("expert_gated", expert_product_kernel<Element, true>, gated, launch_params, stream);
    const LaunchShape down{dim3{tiles, blocks_for(params.hidden_size, kOutputsOfBlock<false>), 1}, kProductThreads,
                           kProductSharedBytes};
    launch("expert_down", expert_product_kernel<Element, false>, down, launch_params, stream);
  }
}

}  // namespace

namespace cuda {

void expert_mlp(const ExpertMlpParams& params, Device& device) {
  constexpr const char* op = "expert_mlp";
  require(params.gate_up.dtype == params.dtype, op, ": on a GPU the weights must have the dtype of x");
  require(params.num_experts <= kMaxExperts, op, ": there must be at most ", kMaxExperts, " experts, got ",
          params.num_experts);
  require(params.num_chosen <= kMaxChosen, op, ": num_chosen must be at most ", kMaxChosen, ", got ",
          params.num_chosen);
  require_whole_vectors(op, "hidden_size", params.hidden_size, params.dtype);
  require_whole_vectors(op, "inner_size", params.inner_size, params.dtype);
  require_alignment(op, "x", params.x, {params.x_stride}, params.dtype);
  require_alignment(op, "gate_up", params.gate_up.data, {params.gate_up.stride}, params.dtype);
  require_alignment(op, "down", params.down.data, {params.down.stride}, params.dtype);
  if (params.num_tokens == 0 || params.hidden_size == 0) return;

  ExpertLaunch launch_params{};
  launch_params.op = params;
  launch_params.num_pairs = static_cast<int32_t>(params.num_tokens * params.num_chosen);
  const int64_t pairs = launch_params.num_pairs;
  // Every expert has at most one tile that is not full, and every tile a pair.
  launch_params.max_tiles = static_cast<int32_t>(
      std::min<int64_t>(pairs, pairs / kExpertRows + std::min<int64_t>(pairs, params.num_experts)));
  const size_t bytes = element_bytes(params.dtype);
  launch_params.experts = static_cast<int32_t*>(device.workspace(pairs * sizeof(int32_t)));
  launch_params.weights = static_cast<float*>(device.workspace(pairs * sizeof(float)));
  launch_params.sorted = static_cast<int32_t*>(device.workspace(pairs * sizeof(int32_t)));
  launch_params.tiles = static_cast<ExpertTile*>(device.workspace(launch_params.max_tiles * sizeof(ExpertTile)));
  launch_params.inner = device.workspace(pairs * params.inner_size * bytes);
  launch_params.outputs = device.workspace(pairs * params.hidden_size * bytes);

  with_element_type(params.dtype, [&]<class Element>(Element) {
    const cudaStream_t stream = device.stream();
    constexpr int kTokens = kRouteThreads / kWarpSize;
    const LaunchShape route{dim3{static_cast<unsigned>((params.num_tokens + kTokens - 1) / kTokens), 1, 1},
                            kRouteThreads};
    launch("route_experts", route_experts_kernel<Element>, route, launch_params, stream);
    run_products<Element>(launch_params, stream);
    const LaunchShape sum{dim3{static_cast<unsigned>(params.num_tokens),
                               blocks_for(params.hidden_size, kSumThreads * kVectorSize<Element>), 1},
                          kSumThreads};
    launch("sum_experts", sum_experts_kernel<Element>, sum, launch_params, stream);
  });
}

}  // namespace cuda
}  // namespace cudaprefill
