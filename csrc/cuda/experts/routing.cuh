// Which experts each token runs through, and the pairs of tokens and experts sorted into tiles.
#pragma once

#include <cuda_runtime.h>

#include <ptx/convert.cuh>
#include <ptx/memory.cuh>

#include "csrc/cuda/experts/experts.h"
#include "csrc/cuda/reduce.cuh"
#include "csrc/cuda/stream_order.cuh"

namespace cudaprefill {

constexpr int kRouteThreads = 128;  // a warp takes a token
constexpr int kSortThreads = 256;   // one for each expert
constexpr uint32_t kSortSharedBytes = (kMaxExperts + kSortThreads / kWarpSize + 1) * sizeof(uint32_t);
static_assert(kSortThreads >= kMaxExperts);

template <class Element>
__device__ __forceinline__ float load_number(const Element* address) {
  if constexpr (sizeof(Element) == 4) {
    return ptx::load_global(address);
  } else {
    float low, high;
    ptx::unpack<Element>(ptx::load_global(reinterpret_cast<const uint16_t*>(address)), low, high);
    return low;
  }
}

// Lane i holds the logits of experts i, i + 32, ...
template <class Element>
__global__ void __launch_bounds__(kRouteThreads) route_experts_kernel(const __grid_constant__ ExpertLaunch launch) {
  constexpr int kOfLane = kMaxExperts / kWarpSize;
  const ExpertMlpParams& params = launch.op;
  const int lane = threadIdx.x % kWarpSize;
  const int64_t token = int64_t{blockIdx.x} * (kRouteThreads / kWarpSize) + threadIdx.x / kWarpSize;
  enter_stream();
  if (token >= params.num_tokens) return;
  const Element* logits = static_cast<const Element*>(params.router_logits) + token * params.logits_stride;

  const float lowest = __uint_as_float(0xff800000u);  // -infinity
  float keys[kOfLane];                                // NaN is below all numbers
  float largest = lowest;
  bool has_nan = false;
#pragma unroll
  for (int i = 0; i < kOfLane; ++i) {
    const int expert = i * kWarpSize + lane;
    const float logit = expert < params.num_experts ? load_number(logits + expert) : lowest;
    has_nan |= logit != logit;
    keys[i] = logit != logit ? lowest : logit;
    largest = fmaxf(largest, keys[i]);
  }
  for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, distance));
  }
  float sum = has_nan ? __uint_as_float(0x7fc00000u) : 0.0f;
#pragma unroll
  for (int i = 0; i < kOfLane; ++i) {
    if (i * kWarpSize + lane < params.num_experts) sum += expf(keys[i] - largest);
  }
  sum = group_sum(sum, kWarpSize);

  unsigned chosen = 0;  // bit i: keys[i]
  float own_weight = 0;
  int own_expert = 0;  // lane j keeps the choice j
  for (int choice = 0; choice < params.num_chosen; ++choice) {
    float best = lowest;
    int best_expert = kMaxExperts;
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      const int expert = i * kWarpSize + lane;
      if (expert >= params.num_experts || (chosen >> i & 1)) continue;
      if (best_expert == kMaxExperts || keys[i] > best) {
        best = keys[i];
        best_expert = expert;
      }
    }
    for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
      const float other = __shfl_xor_sync(kFullWarp, best, distance);
      const int other_expert = __shfl_xor_sync(kFullWarp, best_expert, distance);
      const bool better = other > best || (other == best && other_expert < best_expert);
      if (other_expert < kMaxExperts && (best_expert == kMaxExperts || better)) {
        best = other;
        best_expert = other_expert;
      }
    }
    if (best_expert % kWarpSize == lane) chosen |= 1u << (best_expert / kWarpSize);
    if (lane == choice) {
      own_expert = best_expert;
      own_weight = expf(best - largest) / sum;
    }
  }
  const float of_chosen = group_sum(own_weight, kWarpSize);
  if (lane >= params.num_chosen) return;
  const int64_t pair = token * params.num_chosen + lane;
  ptx::store_global(launch.experts + pair, own_expert);
  ptx::store_global(launch.weights + pair, params.renormalise ? own_weight / of_chosen : own_weight);
}

// The sum over the threads before this one, and that over all in `total`. Every thread must come here.
__device__ __forceinline__ uint32_t sum_before(uint32_t value, uint32_t scratch, uint32_t& total) {
  constexpr int kWarps = kSortThreads / kWarpSize;
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  uint32_t through = value;
  for (int distance = 1; distance < kWarpSize; distance *= 2) {
    const uint32_t lower = __shfl_up_sync(kFullWarp, through, distance);
    if (lane >= distance) through += lower;
  }
  if (lane == kWarpSize - 1) ptx::store_shared(scratch + 4 * warp, through);
  __syncthreads();  // all warps have left their sums
  uint32_t before = through - value;
  total = 0;
  for (int w = 0; w < kWarps; ++w) {
    uint32_t of_warp;
    ptx::load_shared(scratch + 4 * w, of_warp);
    if (w < warp) before += of_warp;
    total += of_warp;
  }
  __syncthreads();  // all have read them
  return before;
}

// One thread block: a counting sort. In which order the pairs of one expert come is left to chance, and no result
// depends on it.
__global__ void __launch_bounds__(kSortThreads) sort_experts_kernel(const __grid_constant__ ExpertLaunch launch) {
  const int expert = threadIdx.x;
  const uint32_t counters = ptx::shared_base(), scratch = counters + 4 * kMaxExperts;
  const auto counter = [&](int of) { return counters + 4 * of; };
  ptx::store_shared(counter(expert), 0u);
  enter_stream();
  __syncthreads();  // zeroed by all
  for (int pair = threadIdx.x; pair < launch.num_pairs; pair += kSortThreads) {
    ptx::atomic_add_shared(counter(ptx::load_global(launch.experts + pair)), 1);
  }
  __syncthreads();  // counted by all
  uint32_t count, num_pairs, num_tiles;
  ptx::load_shared(counter(expert), count);
  const uint32_t first = sum_before(count, scratch, num_pairs);
  const uint32_t first_tile = sum_before((count + kExpertRows - 1) / kExpertRows, scratch, num_tiles);
  ptx::store_shared(counter(expert), first);
  const auto write_tile = [&](uint32_t tile, int begin, int rows) {
    ptx::store_global(reinterpret_cast<int4*>(launch.tiles + tile), int4{expert, begin, rows, 0});
  };
  for (uint32_t done = 0; done < count; done += kExpertRows) {
    write_tile(first_tile + done / kExpertRows, static_cast<int>(first + done),
               min(kExpertRows, static_cast<int>(count - done)));
  }
  for (int tile = static_cast<int>(num_tiles) + expert; tile < launch.max_tiles; tile += kSortThreads) {
    write_tile(tile, 0, 0);
  }
  __syncthreads();  // every counter is where its expert begins
  for (int pair = threadIdx.x; pair < launch.num_pairs; pair += kSortThreads) {
    const uint32_t place = ptx::atomic_add_shared(counter(ptx::load_global(launch.experts + pair)), 1);
    ptx::store_global(launch.sorted + place, pair);
  }
}

}  // namespace cudaprefill
