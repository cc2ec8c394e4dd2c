// The attention kernels of one number format, head size and type of the caches, as the dispatch in attention.cu sees
// them. They are instantiated in one generated file each (instance.cu.in), for each takes seconds to compile.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "csrc/cuda/attention/decode.cuh"
#include "csrc/cuda/attention/prefill.cuh"

namespace cudaprefill {

template <class Element, int head_size, class Kv>
void run_decode(const DecodeLaunch& launch, int64_t num_rows_blocks, cudaStream_t stream);

// The splits of run_decode, if there are several.
template <class Element, int head_size>
void run_merge_decode(const DecodeLaunch& launch, int64_t num_rows_blocks, cudaStream_t stream);

template <class Element, int head_size, class Kv>
void run_prefill(const PrefillLaunch& launch, int num_blocks, cudaStream_t stream);

// The parts of split tiles, whichever prefill has left them.
template <class Element, int head_size>
void run_merge_prefill(const PrefillLaunch& launch, int64_t max_split_tiles, cudaStream_t stream);

}  // namespace cudaprefill
