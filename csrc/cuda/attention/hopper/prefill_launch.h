// The Hopper prefill of one number format and head size, as the dispatch in attention.cu sees it.
#pragma once

#include <cuda_runtime.h>

#include "csrc/cuda/attention/hopper/prefill_traits.h"
#include "csrc/cuda/attention/prefill_launch.h"
#include "csrc/cuda/tensor_map.h"

namespace cudaprefill {

// Who brings keys and values to shared memory.
enum class KvCopies { kTensor, kAsync, kWidening };  // kWidening: of Float8, by cp.async

struct HopperPrefillLaunch {
  TensorMap keys, values;  // of PageBoxes; for KvCopies::kTensor
  PrefillLaunch common;
  int heads_of_keys, heads_of_values;  // from a block to the next in the cache, in heads
};

template <class Element, int head_size>
void run_prefill_sm90(const HopperPrefillLaunch& launch, KvCopies copies, int num_blocks, cudaStream_t stream);

// Over caches of Float8, where hopper_widens(head_size).
template <class Element, int head_size>
void run_widening_prefill_sm90(const HopperPrefillLaunch& launch, int num_blocks, cudaStream_t stream);

}  // namespace cudaprefill
