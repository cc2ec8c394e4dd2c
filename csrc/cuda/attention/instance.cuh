// The launches of the attention kernels, a template over number format and head size.
#pragma once

#include <launch.cuh>

#include "csrc/cuda/attention/instance.h"

namespace cudaprefill {

template <class Element, int head_size, class Kv>
void run_decode(const DecodeLaunch& launch_params, int64_t num_rows_blocks, cudaStream_t stream) {
  using Traits = DecodeTraits<head_size, Kv>;
  const LaunchShape shape{dim3{static_cast<unsigned>(num_rows_blocks * launch_params.num_splits), 1, 1},
                          Traits::kWarps * kWarpSize, Traits::kSharedBytes};
  launch("decode_attention", decode_attention_kernel<Element, head_size, Kv>, shape, launch_params, stream);
}

template <class Element, int head_size>
void run_merge_decode(const DecodeLaunch& launch_params, int64_t num_rows_blocks, cudaStream_t stream) {
  const LaunchShape merge_shape{dim3{static_cast<unsigned>(num_rows_blocks), 1, 1}, kMergeThreads};
  launch("merge_decode", merge_decode_kernel<Element, head_size>, merge_shape, launch_params, stream);
}

template <class Element, int head_size, class Kv>
void run_prefill(const PrefillLaunch& launch_params, int num_blocks, cudaStream_t stream) {
  const LaunchShape shape{dim3{static_cast<unsigned>(num_blocks), 1, 1}, kPrefillThreads,
                          PrefillTraits<head_size, Kv>::kSharedBytes};
  launch("prefill_attention", prefill_attention_kernel<Element, head_size, Kv>, shape, launch_params, stream);
}

template <class Element, int head_size>
void run_merge_prefill(const PrefillLaunch& launch_params, int64_t max_split_tiles, cudaStream_t stream) {
  const LaunchShape merge_shape{
      dim3{static_cast<unsigned>(max_split_tiles), static_cast<unsigned>(launch_params.op.num_kv_heads), 1},
      kPrefillThreads};
  launch("merge_prefill", merge_prefill_kernel<Element, head_size>, merge_shape, launch_params, stream);
}

}  // namespace cudaprefill
