// Attention in float32 without tensor cores, for prefill and decode.
#pragma once

#include <cuda_runtime.h>

#include "csrc/cuda/attention/softmax.cuh"
#include "csrc/ops/params.h"

namespace cudaprefill {

constexpr int kPlainMaxHeadSize = 256;

struct PlainLaunch {
  PrefillAttentionParams op;  // for a decode: one token a request, cu_seqlens_q null
  ScoreScale scale;
  int block_shift;
  int group;
};

void run_plain_attention(const PlainLaunch& launch, cudaStream_t stream);

}  // namespace cudaprefill
