// How the kernels of add_lora are launched. Between them lie `rank` numbers for each row and part, in a workspace.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "csrc/ops/params.h"

namespace cudaprefill {

struct LoraLaunch {
  AddLoraParams op;
  void* low;  // [num_row_ids, num_parts, kMaxLoraRank] of the dtype of x
};

// At most so many tiles of `rows` rows have a row: how many rows an adapter has is known on the device alone.
constexpr int64_t max_lora_tiles(const AddLoraParams& params, int rows) {
  const int64_t tiles = params.num_row_ids / rows + params.num_adapters;
  return tiles < params.num_row_ids ? tiles : params.num_row_ids;
}

// For the 16-bit formats, on tensor cores; instantiated in one generated file each (instance.cu.in).
template <class Element>
void run_lora(const LoraLaunch& launch, cudaStream_t stream);

}  // namespace cudaprefill
