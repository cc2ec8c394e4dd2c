// The launches of the Hopper decode, a template over number format and head size.
#pragma once

#include <launch.cuh>

#include "csrc/cuda/attention/hopper/decode_sm90.cuh"
#include "csrc/cuda/attention/hopper/merge_decode_sm90.cuh"

namespace cudaprefill {

template <class Element, int head_size, class Kv>
void run_decode_sm90(const HopperDecodeLaunch& params, int num_blocks, cudaStream_t stream) {
  using Traits = HopperDecodeTraits<head_size, Kv>;
  const LaunchShape shape{dim3{static_cast<unsigned>(num_blocks), 1, 1}, Traits::kThreads,
                          Traits::shared_bytes(params.op.num_requests)};
  launch("decode_sm90", decode_sm90_kernel<Element, head_size, Kv>, shape, params, stream);
}

template <class Element, int head_size>
void run_merge_decode_sm90(const HopperDecodeLaunch& params, cudaStream_t stream) {
  const int64_t rows = int64_t{params.op.num_requests} * params.op.num_kv_heads * params.row_tiles;
  const LaunchShape merge_shape{dim3{static_cast<unsigned>(rows), static_cast<unsigned>(params.partials.rows), 1},
                                kHopperMergeThreads, HopperMergeMemory::bytes(params.workers)};
  launch("merge_decode_sm90", merge_decode_sm90_kernel<Element, head_size>, merge_shape, params, stream);
}

}  // namespace cudaprefill
