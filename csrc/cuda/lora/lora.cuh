// add_lora on tensor cores, in two kernels:
//
//   shrink: a thread block makes low = scale * x @ a^T for 16 rows and one part. Its warps share the inputs, and add up
//           what they have in shared memory.
//   expand: a thread block adds low @ b to 64 rows and one tile of 64 outputs, 16 of them a warp.
//
// `low` is rounded to the number format, as x was. Ranks are filled up with zeros to a multiple of 16, on both sides.
#pragma once

#include <cuda_runtime.h>

#include <ptx/async_copy.cuh>
#include <ptx/convert.cuh>
#include <ptx/matrix.cuh>
#include <ptx/memory.cuh>

#include "csrc/cuda/attention/products.cuh"
#include "csrc/cuda/lora/lora.h"
#include "csrc/cuda/lora/tile.cuh"
#include "csrc/cuda/stream_order.cuh"

namespace cudaprefill {

constexpr int kShrinkRows = 16;
constexpr int kShrinkWarps = 8;
constexpr int kShrinkThreads = kShrinkWarps * kWarpSize;
constexpr int kShrinkInputs = 32;  // of a step of a warp: two products
constexpr uint32_t kShrinkSharedBytes = kShrinkWarps * kShrinkRows * kMaxLoraRank * sizeof(float);

constexpr int kExpandRows = 64;
constexpr int kExpandThreads = kLoraTile / 16 * kWarpSize;
constexpr uint32_t kExpandSharedBytes =
    SharedTile<kMaxLoraRank>::bytes(kExpandRows) + SharedTile<kLoraTile>::bytes(kMaxLoraRank);

__device__ __forceinline__ int rounded_rank(int rank) { return (rank + 15) / 16 * 16; }

template <class Element>
__device__ __forceinline__ Element* low_of(const LoraLaunch& launch, int row, int part) {
  return static_cast<Element*>(launch.low) + (int64_t{row} * launch.op.num_parts + part) * kMaxLoraRank;
}

template <class Element>
__device__ __forceinline__ uint4 load_or_zeros(const Element* address, bool valid) {
  return valid ? ptx::load_global(reinterpret_cast<const uint4*>(address)) : uint4{0, 0, 0, 0};
}

template <class Element>
__global__ void __launch_bounds__(kShrinkThreads) lora_shrink_kernel(const __grid_constant__ LoraLaunch launch) {
  const AddLoraParams& params = launch.op;
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  const int group = lane / 4, quarter = lane % 4;  // g and t of ptx/matrix.cuh
  enter_stream();
  const LoraTile tile = lora_tile<kShrinkRows>(params, blockIdx.x);
  if (tile.count == 0) return;
  const int number = blockIdx.y;
  const int64_t place = int64_t{tile.adapter} * params.num_parts + number;
  const int rank = static_cast<int>(ptx::load_global(&params.parts[place].rank));
  if (rank == 0) return;
  const auto* a = reinterpret_cast<const Element*>(ptx::load_global(&params.parts[place].a));

  const Element* x[2] = {};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = group + 8 * half;
    if (row >= tile.count) continue;
    const int64_t id = ptx::load_global(params.row_ids + tile.first + row);
    x[half] = static_cast<const Element*>(params.x) + id * params.x_stride;
  }
  float sums[kMaxLoraRank / 8][4] = {};
  for (int64_t first = warp * kShrinkInputs; first < params.num_inputs; first += kShrinkWarps * kShrinkInputs) {
    // In which order inputs are summed is free, as long as x and a agree: a lane takes eight that adjoin, 16 bytes, as
    // the pairs that it has in two products.
    const int64_t input = first + 8 * quarter;
    const bool inside = input < params.num_inputs;
    const uint4 upper = load_or_zeros(x[0] + input, inside && x[0]);
    const uint4 lower = load_or_zeros(x[1] + input, inside && x[1]);
    const uint32_t fragments[2][4] = {{upper.x, lower.x, upper.y, lower.y}, {upper.z, lower.z, upper.w, lower.w}};
#pragma unroll
    for (int n = 0; n < kMaxLoraRank / 8; ++n) {
      if (n * 8 >= rank) break;
      const int row = n * 8 + group;
      const uint4 weight = load_or_zeros(a + row * params.num_inputs + input, inside && row < rank);
      ptx::multiply_accumulate<Element>(sums[n], fragments[0], weight.x, weight.y);
      ptx::multiply_accumulate<Element>(sums[n], fragments[1], weight.z, weight.w);
    }
  }

  const int ranks = rounded_rank(rank);
  const auto address = [](int of_warp, int row, int column) {
    const int element = (of_warp * kShrinkRows + row) * kMaxLoraRank + column;
    return ptx::shared_base() + element * static_cast<uint32_t>(sizeof(float));
  };
#pragma unroll
  for (int n = 0; n < kMaxLoraRank / 8; ++n) {
    if (n * 8 >= ranks) break;
    ptx::store_shared(address(warp, group, n * 8 + 2 * quarter), float2{sums[n][0], sums[n][1]});
    ptx::store_shared(address(warp, group + 8, n * 8 + 2 * quarter), float2{sums[n][2], sums[n][3]});
  }
  __syncthreads();  // all warps have left their sums

  const float scale = ptx::load_global(params.scales + place);
  constexpr int kPairs = kMaxLoraRank / 2;
  for (int i = threadIdx.x; i < kShrinkRows * kPairs; i += kShrinkThreads) {
    const int row = i / kPairs, column = i % kPairs * 2;
    if (row >= tile.count || column >= ranks) continue;
    float2 total{0, 0};
#pragma unroll
    for (int of_warp = 0; of_warp < kShrinkWarps; ++of_warp) {
      float2 part;
      ptx::load_shared(address(of_warp, row, column), part);
      total.x += part.x;
      total.y += part.y;
    }
    auto* to = reinterpret_cast<uint32_t*>(low_of<Element>(launch, tile.first + row, number) + column);
    ptx::store_global(to, ptx::pack<Element>(scale * total.x, scale * total.y));
  }
}

template <class Element>
__global__ void __launch_bounds__(kExpandThreads) lora_expand_kernel(const __grid_constant__ LoraLaunch launch) {
  const AddLoraParams& params = launch.op;
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  enter_stream();
  const LoraTile tile = lora_tile<kExpandRows>(params, blockIdx.x);
  if (tile.count == 0) return;
  // The tiles of outputs of all parts, one part after the other.
  int number = 0, output_tile = blockIdx.y, rank = 0;
  int64_t num_outputs = 0;
  const LoraPart* part = params.parts + int64_t{tile.adapter} * params.num_parts;
  for (; number < params.num_parts; ++number, ++part) {
    rank = static_cast<int>(ptx::load_global(&part->rank));
    if (rank == 0) continue;
    num_outputs = ptx::load_global(&part->num_outputs);
    const int tiles = static_cast<int>((num_outputs + kLoraTile - 1) / kLoraTile);
    if (output_tile < tiles) break;
    output_tile -= tiles;
  }
  if (number == params.num_parts) return;

  const int ranks = rounded_rank(rank);
  const auto* b =
      reinterpret_cast<const Element*>(ptx::load_global(&part->b)) + int64_t{output_tile} * rank * kLoraTile;
  const SharedTile<kMaxLoraRank> low{ptx::shared_base()};
  const SharedTile<kLoraTile> weights{low.base + SharedTile<kMaxLoraRank>::bytes(kExpandRows)};
  const int low_chunks = ranks / kChunkElements;
  for (int i = threadIdx.x; i < kExpandRows * low_chunks; i += kExpandThreads) {
    const int row = i / low_chunks, chunk = i % low_chunks;
    ptx::copy_async_16(low.address(row, chunk),
                       low_of<Element>(launch, tile.first + row, number) + chunk * kChunkElements, row < tile.count);
  }
  constexpr int kChunks = SharedTile<kLoraTile>::kChunks;
  for (int i = threadIdx.x; i < ranks * kChunks; i += kExpandThreads) {
    const int row = i / kChunks, chunk = i % kChunks;
    ptx::copy_async_16(weights.address(row, chunk), b + row * kLoraTile + chunk * kChunkElements, row < rank);
  }
  ptx::commit_copies();
  ptx::wait_for_copies<0>();  // of this thread
  __syncthreads();            // of all others

  const int group = lane / 4, quarter = lane % 4;
  const int64_t first_of_warp = int64_t{output_tile} * kLoraTile + warp * 16;
  const int64_t first_output = ptx::load_global(&part->first_output) + first_of_warp;
  for (int upper_row = 0; upper_row < tile.count; upper_row += 16) {
    float sums[2][4] = {};
#pragma unroll
    for (int k = 0; k < kMaxLoraRank / 16; ++k) {
      if (k * 16 >= ranks) break;
      uint32_t rows[4], columns[4];
      load_query(low, upper_row, k, lane, rows);
      load_values(weights, k * 16, warp, lane, columns);
      ptx::multiply_accumulate<Element>(sums[0], rows, columns[0], columns[1]);
      ptx::multiply_accumulate<Element>(sums[1], rows, columns[2], columns[3]);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = upper_row + group + 8 * half;
      if (row >= tile.count) continue;
      const int64_t id = ptx::load_global(params.row_ids + tile.first + row);
      Element* out = static_cast<Element*>(params.out) + id * params.out_stride + first_output;
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const int column = n * 8 + 2 * quarter;
        if (first_of_warp + column >= num_outputs) continue;
        auto* pair = reinterpret_cast<uint32_t*>(out + column);
        float low_value, high_value;
        ptx::unpack<Element>(ptx::load_global(pair), low_value, high_value);
        ptx::store_global(pair, ptx::pack<Element>(low_value + sums[n][2 * half], high_value + sums[n][2 * half + 1]));
      }
    }
  }
}

}  // namespace cudaprefill
