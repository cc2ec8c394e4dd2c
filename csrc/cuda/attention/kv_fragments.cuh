// Fragments of keys and values as the caches store them, for kernels that multiply them by one warp each.
//
// Those of 16 bits are loaded as fragments (products.cuh); those of 8 bits become fragments in registers. A load of
// 16-bit elements brings two of them at once then, so each lane has other neighbours, t = lane % 4:
//
//     K: four numbers 4t .. 4t + 3 of a step, where a fragment wants 2t, 2t + 1, 2t + 8, 2t + 9. The order of a sum is
//        free, so the queries take the same order (load_query_for), and nothing moves.
//     V: two numbers of each key, 2g and 2g + 1 (g = lane / 4). The first ones make one tile of eight columns, the
//     second
//        ones another, so a lane ends with the columns 4t, 4t + 2 of one and 4t + 1, 4t + 3 of the other (OutColumns).
#pragma once

#include <ptx/matrix.cuh>
#include <ptx/memory.cuh>

#include "csrc/cuda/attention/products.cuh"
#include "csrc/cuda/kv_number.cuh"

namespace cudaprefill {

// How many k-steps of the first product, or column steps of the second, one load of keys or values brings.
template <class Kv>
inline constexpr int kStepsOfLoad = sizeof(Kv) == 1 ? 2 : 1;

// The A fragment of rows [row, row + 16) and elements [16 k, 16 k + 16) of a tile, in the order of keys of type Kv.
template <class Kv, class Tile>
__device__ __forceinline__ void load_query_for(const Tile& tile, int row, int k, int lane, uint32_t (&fragment)[4]) {
  if constexpr (sizeof(Kv) == 1) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t four = tile.address(row + half * 8 + lane / 4, 2 * k + lane % 4 / 2) + lane % 2 * 8;
      ptx::load_shared(four, fragment[half]);
      ptx::load_shared(four + 4, fragment[half + 2]);
    }
  } else {
    load_query(tile, row, k, lane, fragment);
  }
}

// The B fragments of K^T for keys [row, row + 16) and elements [16 k, 16 (k + kStepsOfLoad)): for each step two
// registers for each eight keys. Steps past the end of a row repeat the last.
template <class Element, class Kv, class Tile>
__device__ __forceinline__ void load_key_fragments(const Tile& tile, int row, int k, int lane,
                                                   uint32_t (&fragments)[kStepsOfLoad<Kv>][4]) {
  if constexpr (sizeof(Kv) == 1) {
    uint32_t fours[4];  // matrices: upper and lower keys of a step, then those of the next one
    const int step = k + lane / 16;
    ptx::load_matrices(tile.address(row + lane % 16, step < Tile::kChunks ? step : Tile::kChunks - 1), fours);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      fragments[i / 2][i % 2 * 2] = widen_first_two<Element>(fours[i]);
      fragments[i / 2][i % 2 * 2 + 1] = widen_last_two<Element>(fours[i]);
    }
  } else {
    load_keys(tile, row, k, lane, fragments[0]);
  }
}

// The B fragments of V for keys [row, row + 16) and elements [16 n, 16 (n + kStepsOfLoad)): for each step two registers
// for each eight columns.
template <class Element, class Kv, class Tile>
__device__ __forceinline__ void load_value_fragments(const Tile& tile, int row, int n, int lane,
                                                     uint32_t (&fragments)[kStepsOfLoad<Kv>][4]) {
  if constexpr (sizeof(Kv) == 1) {
    uint32_t twos[4];
    const int step = n + lane / 16;
    ptx::load_matrices_transposed(tile.address(row + lane % 16, step < Tile::kChunks ? step : Tile::kChunks - 1), twos);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      fragments[i / 2][i % 2] = widen_float8<Element>(twos[i] << 8);
      fragments[i / 2][i % 2 + 2] = widen_float8<Element>(twos[i]);
    }
  } else {
    load_values(tile, row, n, lane, fragments[0]);
  }
}

// Where the columns of the second product's accumulators lie in a row of the output: pair n of a lane is two
// neighbouring elements, from element(n, lane) on, of the upper (0) or the lower (1) half of the rows.
template <class Kv>
struct OutColumns {
  __device__ __forceinline__ static int element(int n, int lane) {
    return sizeof(Kv) == 1 ? n / 2 * 16 + lane % 4 * 4 + n % 2 * 2 : n * 8 + lane % 4 * 2;
  }
  template <int tiles>
  __device__ __forceinline__ static float2 pair(const float (&out)[tiles][4], int n, int half) {
    if constexpr (sizeof(Kv) == 1) {
      return {out[n / 2 * 2][2 * half + n % 2], out[n / 2 * 2 + 1][2 * half + n % 2]};
    } else {
      return {out[n][2 * half], out[n][2 * half + 1]};
    }
  }
};

}  // namespace cudaprefill
