// add_lora: the choice of kernels, and those for float32, for models that are kept in it: no tensor cores, a thread
// block for one row.
#include <cuda_runtime.h>

#include <launch.cuh>

#include "csrc/cuda/checks.h"
#include "csrc/cuda/kernels.h"
#include "csrc/cuda/lora/lora.h"
#include "csrc/cuda/lora/tile.cuh"
#include "csrc/cuda/stream_order.cuh"
#include "csrc/cuda/vector.cuh"

namespace cudaprefill {
namespace {

constexpr int kThreads = 128;

// A warp makes one number of the rank at a time. Grid: (rows, parts).
__global__ void __launch_bounds__(kThreads) plain_lora_shrink_kernel(const __grid_constant__ LoraLaunch launch) {
  const AddLoraParams& params = launch.op;
  const int lane = threadIdx.x % kWarpSize;
  enter_stream();
  const LoraTile tile = lora_tile<1>(params, blockIdx.x);
  if (tile.count == 0) return;
  const int number = blockIdx.y;
  const int64_t place = int64_t{tile.adapter} * params.num_parts + number;
  const auto rank = static_cast<int>(ptx::load_global(&params.parts[place].rank));
  if (rank == 0) return;
  const auto* a = reinterpret_cast<const float*>(ptx::load_global(&params.parts[place].a));
  const int64_t id = ptx::load_global(params.row_ids + tile.first);
  const float* x = static_cast<const float*>(params.x) + id * params.x_stride;
  const float scale = ptx::load_global(params.scales + place);
  float* low = static_cast<float*>(launch.low) + (int64_t{tile.first} * params.num_parts + number) * kMaxLoraRank;
  for (int j = threadIdx.x / kWarpSize; j < rank; j += kThreads / kWarpSize) {
    float sum = 0;
    for (int64_t k = 4 * lane; k < params.num_inputs; k += 4 * kWarpSize) {
      float value[4], weight[4];
      load_vector(x + k, value);
      load_vector(a + j * params.num_inputs + k, weight);
#pragma unroll
      for (int i = 0; i < 4; ++i) sum += value[i] * weight[i];
    }
    sum = group_sum(sum, kWarpSize);
    if (lane == 0) ptx::store_global(low + j, scale * sum);
  }
}

// A thread makes one output. Grid: (rows, outputs / kThreads).
__global__ void __launch_bounds__(kThreads) plain_lora_expand_kernel(const __grid_constant__ LoraLaunch launch) {
  const AddLoraParams& params = launch.op;
  enter_stream();
  const LoraTile tile = lora_tile<1>(params, blockIdx.x);
  if (tile.count == 0) return;
  const int64_t output = int64_t{blockIdx.y} * kThreads + threadIdx.x;
  const int64_t id = ptx::load_global(params.row_ids + tile.first);
  float* out = static_cast<float*>(params.out) + id * params.out_stride + output;
  const LoraPart* part = params.parts + int64_t{tile.adapter} * params.num_parts;
  for (int number = 0; number < params.num_parts; ++number, ++part) {
    const auto rank = static_cast<int>(ptx::load_global(&part->rank));
    if (rank == 0) continue;
    const int64_t column = output - ptx::load_global(&part->first_output);
    if (column < 0 || column >= ptx::load_global(&part->num_outputs)) continue;
    const float* b = reinterpret_cast<const float*>(ptx::load_global(&part->b)) +
                     column / kLoraTile * rank * kLoraTile + column % kLoraTile;
    const float* low =
        static_cast<const float*>(launch.low) + (int64_t{tile.first} * params.num_parts + number) * kMaxLoraRank;
    float sum = 0;
    for (int j = 0; j < rank; ++j) sum += ptx::load_global(low + j) * ptx::load_global(b + j * kLoraTile);
    ptx::store_global(out, ptx::load_global(out) + sum);
  }
}

void run_plain_lora(const LoraLaunch& launch_params, cudaStream_t stream) {
  const AddLoraParams& params = launch_params.op;
  const auto rows = static_cast<unsigned>(params.num_row_ids);
  const LaunchShape shrink{dim3{rows, static_cast<unsigned>(params.num_parts), 1}, kThreads};
  launch("plain_lora_shrink", plain_lora_shrink_kernel, shrink, launch_params, stream);
  const LaunchShape expand{dim3{rows, static_cast<unsigned>((params.num_outputs + kThreads - 1) / kThreads), 1},
                           kThreads};
  launch("plain_lora_expand", plain_lora_expand_kernel, expand, launch_params, stream);
}

}  // namespace

namespace cuda {

void add_lora(const AddLoraParams& params, Device& device) {
  constexpr const char* op = "add_lora";
  require_whole_vectors(op, "num_inputs", params.num_inputs, params.dtype);
  require_whole_vectors(op, "num_outputs", params.num_outputs, params.dtype);
  require_alignment(op, "x", params.x, {params.x_stride}, params.dtype);
  require_alignment(op, "out", params.out, {params.out_stride}, params.dtype);
  if (params.num_row_ids == 0 || params.num_adapters == 0 || params.num_parts == 0) return;
  if (params.num_inputs == 0 || params.num_outputs == 0) return;
  const int64_t low_elements = params.num_row_ids * params.num_parts * kMaxLoraRank;
  const LoraLaunch launch{params, device.workspace(low_elements * element_bytes(params.dtype))};
  with_element_type(params.dtype, [&]<class Element>(Element) {
    if constexpr (sizeof(Element) == 4) {
      run_plain_lora(launch, device.stream());
    } else {
      run_lora<Element>(launch, device.stream());
    }
  });
}

}  // namespace cuda
}  // namespace cudaprefill
