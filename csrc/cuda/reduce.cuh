// Sums over the lanes of a warp and the threads of a block.
#pragma once

#include <cuda_runtime.h>

#include <ptx/memory.cuh>

namespace cudaprefill {

constexpr unsigned kFullWarp = 0xffffffff;
constexpr int kWarpSize = 32;

// The sum over groups of `lanes` neighbouring lanes (a power of two), in every lane of the group.
__device__ __forceinline__ float group_sum(float value, int lanes) {
  for (int distance = lanes / 2; distance > 0; distance /= 2) value += __shfl_xor_sync(kFullWarp, value, distance);
  return value;
}

// The sum over the block, in every thread. `scratch` is the shared address of one float for each warp. Every thread of
// the block must come here, once.
__device__ __forceinline__ float block_sum(float value, uint32_t scratch) {
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  const int num_warps = blockDim.x / kWarpSize;
  value = group_sum(value, kWarpSize);
  if (lane == 0) ptx::store_shared(scratch + warp * sizeof(float), value);
  __syncthreads();
  float of_warp = 0;
  if (lane < num_warps) ptx::load_shared(scratch + lane * sizeof(float), of_warp);
  return group_sum(of_warp, kWarpSize);
}

}  // namespace cudaprefill
