// The two matrix products of attention, for one warp and 16-row fragments (ptx/matrix.cuh draws their layout). A tile
// is what has the shared address of eight elements: SharedTile, or OperandTile of hopper/.
#pragma once

#include <ptx/convert.cuh>
#include <ptx/matrix.cuh>

#include "csrc/cuda/attention/tile.cuh"

namespace cudaprefill {

// The A fragment of rows [row, row + 16) and elements [16 k, 16 k + 16) of a tile.
template <class Tile>
__device__ __forceinline__ void load_query(const Tile& tile, int row, int k, int lane, uint32_t (&fragment)[4]) {
  // Matrices: upper rows, lower rows, then the same eight elements further.
  ptx::load_matrices(tile.address(row + lane % 16, 2 * k + lane / 16), fragment);
}

// The B fragments of K^T for keys [row, row + 16) and elements [16 k, 16 k + 16): two registers for each eight keys.
template <class Tile>
__device__ __forceinline__ void load_keys(const Tile& tile, int row, int k, int lane, uint32_t (&fragment)[4]) {
  ptx::load_matrices(tile.address(row + lane % 8 + lane / 16 * 8, 2 * k + lane / 8 % 2), fragment);
}

// The B fragments of V for keys [row, row + 16) and elements [16 n, 16 n + 16): two registers for each eight elements.
template <class Tile>
__device__ __forceinline__ void load_values(const Tile& tile, int row, int n, int lane, uint32_t (&fragment)[4]) {
  ptx::load_matrices_transposed(tile.address(row + lane % 16, 2 * n + lane / 16), fragment);
}

// Scores of 16 rows and 16 neighbouring keys are two accumulators; as weights they are one A fragment, register by
// register, so the second product needs no shuffle.
template <class Element>
__device__ __forceinline__ void pack_weights(const float (&low)[4], const float (&high)[4], uint32_t (&fragment)[4]) {
  fragment[0] = ptx::pack<Element>(low[0], low[1]);
  fragment[1] = ptx::pack<Element>(low[2], low[3]);
  fragment[2] = ptx::pack<Element>(high[0], high[1]);
  fragment[3] = ptx::pack<Element>(high[2], high[3]);
}

}  // namespace cudaprefill
