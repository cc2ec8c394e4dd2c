// Merges the parts of the rows that several warps of the Hopper decode have shared (decode_line.cuh). A thread block is
// one query head of a request; its threads share out the elements of the row, two each, and the parts.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <ptx/convert.cuh>
#include <ptx/memory.cuh>

#include "csrc/cuda/attention/hopper/decode_launch.h"
#include "csrc/cuda/attention/hopper/decode_line.cuh"
#include "csrc/cuda/stream_order.cuh"

namespace cudaprefill {

// The largest over the block, in every thread; `scratch` has a word a warp.
__device__ __forceinline__ float block_maximum(float value, uint32_t scratch) {
  const int lane = threadIdx.x % kWarpSize;
  for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
    value = fmaxf(value, __shfl_xor_sync(kFullWarp, value, distance));
  }
  if (lane == 0) ptx::store_shared(scratch + threadIdx.x / kWarpSize * sizeof(float), value);
  __syncthreads();
  for (int w = 0; w < kHopperMergeThreads / kWarpSize; ++w) {
    float of_warp;
    ptx::load_shared(scratch + w * sizeof(float), of_warp);
    value = fmaxf(value, of_warp);
  }
  return value;
}

struct HopperMergeMemory {
  static constexpr uint32_t kMaximaAt = 0;
  static constexpr uint32_t kSumsAt = kMaximaAt + kHopperMergeThreads / kWarpSize * sizeof(float);
  static constexpr uint32_t kPairsAt = kSumsAt + kHopperMergeThreads / kWarpSize * sizeof(float);
  static constexpr uint32_t kWeightsAt = kPairsAt + kHopperMergeThreads * sizeof(float2);

  // A row has at most a part of each worker.
  static constexpr uint32_t bytes(int workers) { return kWeightsAt + workers * sizeof(float); }
};

// Grid: (requests * KV heads * row tiles, query heads of a row).
template <class Element, int head_size>
__global__ void __launch_bounds__(kHopperMergeThreads)
    merge_decode_sm90_kernel(const __grid_constant__ HopperDecodeLaunch launch) {
  constexpr int kPairs = head_size / 2, kPartLanes = kHopperMergeThreads / kPairs;
  const DecodeAttentionParams& params = launch.op;
  const int rows = params.num_kv_heads * launch.row_tiles;
  const int request = blockIdx.x / rows, row_of_request = blockIdx.x - request * rows;
  const int kv_head = row_of_request / launch.row_tiles, row_tile = row_of_request - kv_head * launch.row_tiles;
  const int row = blockIdx.y;
  enter_stream();
  if (row >= min(kDecodeRows, launch.group - row_tile * kDecodeRows)) return;

  const int before = ptx::load_global(launch.pieces_before + request);
  const int pieces = ptx::load_global(launch.pieces_before + request + 1) - before;
  const int length = ptx::load_global(launch.pieces_before + params.num_requests) * rows;
  const int share = decode_share(length, launch.workers);
  const int begin = before * rows + row_of_request * pieces;
  const int first_worker = begin / share;
  const int num_parts = pieces > 0 ? (begin + pieces - 1) / share - first_worker + 1 : 0;
  if (num_parts == 1) return;  // written by its only warp

  // A row that begins inside of the first worker's share is its last segment, and the first one of all others.
  const auto part = [&](int i) { return decode_part(first_worker + i, i > 0 || first_worker * share == begin); };
  const uint32_t shared = ptx::shared_base();
  const uint32_t weights = shared + HopperMergeMemory::kWeightsAt;
  float maximum = kMinusInfinity;
  for (int i = threadIdx.x; i < num_parts; i += kHopperMergeThreads) {
    const float log_sum = ptx::load_global(launch.partials.log_sum_of(part(i), row));
    ptx::store_shared(weights + i * sizeof(float), log_sum);
    maximum = fmaxf(maximum, log_sum);
  }
  maximum = block_maximum(maximum, shared + HopperMergeMemory::kMaximaAt);
  const float reference = maximum == kMinusInfinity ? 0.0f : maximum;
  float own_sum = 0;
  for (int i = threadIdx.x; i < num_parts; i += kHopperMergeThreads) {
    float log_sum;
    ptx::load_shared(weights + i * sizeof(float), log_sum);
    const float weight = ptx::exp2_fast(log_sum - reference);
    ptx::store_shared(weights + i * sizeof(float), weight);
    own_sum += weight;
  }
  const float sum =
      block_sum(own_sum, shared + HopperMergeMemory::kSumsAt);  // and a barrier, after which all weights are there

  const int pair = threadIdx.x % kPairs, part_lane = threadIdx.x / kPairs;
  float2 merged{0, 0};
#pragma unroll 4
  for (int i = part_lane; i < num_parts; i += kPartLanes) {
    float weight;
    ptx::load_shared(weights + i * sizeof(float), weight);
    const float2 of_part =
        ptx::load_global(reinterpret_cast<const float2*>(launch.partials.out_row(part(i), row)) + pair);
    merged.x += weight * of_part.x;
    merged.y += weight * of_part.y;
  }
  const uint32_t pairs = shared + HopperMergeMemory::kPairsAt;
  ptx::store_shared(pairs + threadIdx.x * sizeof(float2), merged);
  __syncthreads();
  if (part_lane > 0) return;
#pragma unroll
  for (int other = 1; other < kPartLanes; ++other) {
    float2 of_lane;
    ptx::load_shared(pairs + (other * kPairs + pair) * sizeof(float2), of_lane);
    merged.x += of_lane.x;
    merged.y += of_lane.y;
  }
  const float scale = sum == 0 ? 0.0f : 1 / sum;  // no keys: zeros
  Element* to = static_cast<Element*>(params.out.data) + request * params.out.token_stride +
                (kv_head * launch.group + row_tile * kDecodeRows + row) * params.out.head_stride + 2 * pair;
  ptx::store_global(reinterpret_cast<uint32_t*>(to), ptx::pack<Element>(merged.x * scale, merged.y * scale));
}

}  // namespace cudaprefill
