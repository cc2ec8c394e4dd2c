// Which rows a thread block of add_lora works on.
#pragma once

#include <cuda_runtime.h>

#include <ptx/memory.cuh>

#include "csrc/cuda/reduce.cuh"
#include "csrc/ops/params.h"

namespace cudaprefill {

struct LoraTile {
  int adapter;
  int first, count;  // row_ids[first .. first + count); no rows where the index is past the last tile
};

// Tile `index` of those that cut the rows of each adapter into `rows`. A warp looks at 32 adapters at once; all of its
// lanes must come here.
template <int rows>
__device__ __forceinline__ LoraTile lora_tile(const AddLoraParams& params, int index) {
  const int lane = threadIdx.x % kWarpSize;
  int before = 0;  // tiles of the adapters before `base`
  for (int base = 0; base < params.num_adapters; base += kWarpSize) {
    int first = 0, last = 0;
    if (base + lane < params.num_adapters) {
      first = ptx::load_global(params.row_starts + base + lane);
      last = ptx::load_global(params.row_starts + base + lane + 1);
    }
    const int tiles = (last - first + rows - 1) / rows;
    int through = tiles;  // and those of the lanes before
    for (int distance = 1; distance < kWarpSize; distance *= 2) {
      const int more = __shfl_up_sync(kFullWarp, through, distance);
      if (lane >= distance) through += more;
    }
    const unsigned reaching = __ballot_sync(kFullWarp, index < before + through);
    if (reaching != 0) {
      const int source = __ffs(static_cast<int>(reaching)) - 1;
      const int earlier = before + __shfl_sync(kFullWarp, through - tiles, source);
      const int begin = __shfl_sync(kFullWarp, first, source) + (index - earlier) * rows;
      const int end = __shfl_sync(kFullWarp, last, source);
      return {base + source, begin, min(rows, end - begin)};
    }
    before += __shfl_sync(kFullWarp, through, kWarpSize - 1);
  }
  return {0, 0, 0};
}

}  // namespace cudaprefill
