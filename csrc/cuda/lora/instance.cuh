// The launches of the kernels of add_lora, a template over the number format.
#pragma once

#include <launch.cuh>

#include "csrc/cuda/lora/lora.cuh"

namespace cudaprefill {

template <class Element>
void run_lora(const LoraLaunch& launch_params, cudaStream_t stream) {
  const AddLoraParams& params = launch_params.op;
  const auto tiles = [&](int rows) { return static_cast<unsigned>(max_lora_tiles(params, rows)); };
  const auto parts = static_cast<unsigned>(params.num_parts);
  const LaunchShape shrink{dim3{tiles(kShrinkRows), parts, 1}, kShrinkThreads, kShrinkSharedBytes};
  launch("lora_shrink", lora_shrink_kernel<Element>, shrink, launch_params, stream);
  // Every part may end in a tile that is filled up.
  const auto output_tiles = static_cast<unsigned>(params.num_outputs / kLoraTile) + parts;
  const LaunchShape expand{dim3{tiles(kExpandRows), output_tiles, 1}, kExpandThreads, kExpandSharedBytes};
  launch("lora_expand", lora_expand_kernel<Element>, expand, launch_params, stream);
}

}  // namespace cudaprefill
