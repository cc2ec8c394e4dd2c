// What the prefill kernels are launched with.
#pragma once

#include <cuda_runtime.h>

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
  const PrefillItem* items;
  const SplitTile* split_tiles;
  const PlanCounts* counts;
  Partials partials;  // a part for each (part of the plan, KV head)
};

}  // namespace cudaprefill
