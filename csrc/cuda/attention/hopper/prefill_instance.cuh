// The launch of the Hopper prefill, a template over number format and head size.
#pragma once

#include <launch.cuh>

#include "csrc/cuda/attention/hopper/prefill_sm90.cuh"

namespace cudaprefill {

template <class Element, int head_size>
void run_prefill_sm90(const HopperPrefillLaunch& params, KvCopies copies, int num_blocks, cudaStream_t stream) {
  using Traits = HopperPrefillTraits<head_size>;
  const LaunchShape shape{dim3{static_cast<unsigned>(num_blocks), 1, 1}, Traits::kThreads, Traits::kSharedBytes};
  const auto kernel = copies == KvCopies::kTensor ? prefill_sm90_kernel<Element, head_size, KvCopies::kTensor>
                                                  : prefill_sm90_kernel<Element, head_size, KvCopies::kAsync>;
  launch("prefill_sm90", kernel, shape, params, stream);
}

template <class Element, int head_size>
void run_widening_prefill_sm90(const HopperPrefillLaunch& params, int num_blocks, cudaStream_t stream) {
  using Traits = HopperPrefillTraits<head_size>;
  const LaunchShape shape{dim3{static_cast<unsigned>(num_blocks), 1, 1}, Traits::kThreads,
                          Traits::kWideningSharedBytes};
  launch("prefill_sm90", prefill_sm90_kernel<Element, head_size, KvCopies::kWidening>, shape, params, stream);
}

}  // namespace cudaprefill
