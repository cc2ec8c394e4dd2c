// What the prefill kernels are launched with.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "csrc/cuda/attention/partial.cuh"
#include "csrc/cuda/attention/prefill_plan.h"
#include "csrc/cuda/attention/softmax.cuh"
#include "csrc/ops/params.h"

namespace cudaprefill {

struct PrefillLaunch {
  PrefillAttentionParams op;
  ScoreScale scale;
  int block_shift;
  int group;
  int heads_at_once;  // KV heads of a section
  const PrefillItem* items;
  const SplitTile* split_tiles;
  const PlanCounts* counts;
  Partials partials;  // a part for each (part of the plan, KV head)
};

// The n-th piece of work of a launch: an item of the plan and a KV head.
//
// All items of a few heads come before those of the next heads: the tiles of a prompt read the same pages again and
// again, and those of a section fit the L2 cache together (heads_at_once). Within a section the longest items come
// first, for all of its heads:
//
//     items  ->  longest | ... | shortest      heads_at_once = 2:  h0 i0, h1 i0, h0 i1, h1 i1, ... h2 i0, h3 i0, ...
struct PrefillWork {
  int item, kv_head;

  __device__ __forceinline__ static PrefillWork of(const PrefillLaunch& launch, int work, int num_items) {
    const int section = work / (num_items * launch.heads_at_once);
    const int first_head = section * launch.heads_at_once;
    const int heads = min(launch.heads_at_once, launch.op.num_kv_heads - first_head);
    const int in_section = work - first_head * num_items;
    const int item = in_section / heads;
    return {item, first_head + in_section - item * heads};
  }
};

// Where the caches hold `keys` of a request, so many heads' pages of it take half of the L2 cache, or all heads do; the
// sections are as even as can be.
inline int heads_at_once(int64_t keys, int num_kv_heads, int head_size, int number_bytes, int64_t l2_bytes) {
  const int64_t head_bytes = 2 * std::max<int64_t>(keys, 1) * head_size * number_bytes;
  const auto fit = static_cast<int>(std::clamp<int64_t>(l2_bytes / 2 / head_bytes, 1, num_kv_heads));
  const int sections = (num_kv_heads + fit - 1) / fit;
  return (num_kv_heads + sections - 1) / sections;
}

}  // namespace cudaprefill
