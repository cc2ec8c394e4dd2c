// The rows of a prefill tile: (token, query head) pairs, and the keys that each of them sees.
#pragma once

#include <cuda_runtime.h>

#include "csrc/cuda/attention/prefill_launch.h"
#include "csrc/cuda/attention/softmax.cuh"

namespace cudaprefill {

// Row of a tile -> token and query head, both relative to the request and the KV head.
struct QueryRow {
  int token, head;

  __device__ static QueryRow of(int row, int group) {
    const int token = row / group;
    return {token, row - token * group};
  }
};

// The position of a row in its context; rows past the end repeat the last.
__device__ __forceinline__ int row_position(const PrefillLaunch& launch, int position_of_token_0, int row,
                                            int num_rows) {
  return position_of_token_0 + min(row, num_rows - 1) / launch.group;
}

// Takes away the keys that a row does not see, of the upper (0) or lower (1) half of a fragment.
//
//        key ->
//   row  x x x x .   . = past the row's own position
//    |   - x x x x   - = before its window
//    v   - - x x x
template <int tiles>
__device__ __forceinline__ void mask_half(float (&scores)[tiles][4], int half, const PrefillLaunch& launch,
                                          int position, int key, int lane) {
  const int first = launch.op.window > 0 ? position - launch.op.window + 1 : 0;
#pragma unroll
  for (int n = 0; n < tiles; ++n) {
#pragma unroll
    for (int i = 2 * half; i < 2 * half + 2; ++i) {
      const int column = key + n * 8 + lane % 4 * 2 + i % 2;
      if (column < first || column > position) scores[n][i] = kMinusInfinity;
    }
  }
}

// Both halves. The positions are worked out anew each time, for only the tiles at the edges are masked, and registers
// are short.
template <int tiles>
__device__ __forceinline__ void mask_scores(float (&scores)[tiles][4], const PrefillLaunch& launch,
                                            int position_of_token_0, int first_row, int num_rows, int key, int lane) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first_row + half * 8 + lane / 4;
    mask_half(scores, half, launch, row_position(launch, position_of_token_0, row, num_rows), key, lane);
  }
}

}  // namespace cudaprefill
