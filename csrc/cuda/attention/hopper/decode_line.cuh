// How the keys of a decode step are shared out over the warps of the Hopper decode.
//
// The pieces of 16 keys of all rows are laid end to end on one line. A row is a request, a KV head and up to 16 of the
// query heads that share it; the rows of a request are of equal length. Every warp takes an equal share of the line,
// wherever rows begin and end:
//
//     line    | row 0            | row 1 | row 2                | row 3     |
//     shares  | warp 0   | warp 1   | warp 2   | warp 3   | warp 4   | ...
//
// so all are done at the same time whatever the lengths are. What a warp has of a row is a segment. A row that is one
// segment is written to the output; the others leave a part for each segment, and a warp has two of these at most: its
// first segment and its last one.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <ptx/memory.cuh>

#include "csrc/cuda/attention/hopper/decode_launch.h"
#include "csrc/cuda/reduce.cuh"

namespace cudaprefill {

// The pieces that a query sees, those with at least one of its keys: [first, first + count).
struct PieceRange {
  int first_key, last_key;
  int first, count;

  __device__ __forceinline__ static PieceRange of(int context_len, int window) {
    PieceRange range;
    range.last_key = context_len;
    range.first_key = window > 0 ? max(0, context_len - window) : 0;
    range.first = range.first_key / kPageRows;
    range.count = (range.last_key + kPageRows - 1) / kPageRows - range.first;
    return range;
  }
};

// The share of a warp, in pieces: even, but never so small that its parts cost more than the keys they are made of.
__host__ __device__ constexpr int decode_share(int length, int workers) {
  constexpr int kMinPiecesPerShare = 8;
  const int even = (length + workers - 1) / workers;
  return even < kMinPiecesPerShare ? kMinPiecesPerShare : even;
}

// Where the part of a segment lies: the first of its warp, or the second.
__device__ __forceinline__ int decode_part(int worker, bool is_first_segment) {
  return 2 * worker + (is_first_segment ? 0 : 1);
}

// A run of pieces of one row, in the order in which a warp takes them.
struct DecodeSegment {
  int request, kv_head, row_tile;
  PieceRange keys;         // of the whole row
  int piece, piece_after;  // of these
  bool is_whole_row;

  // Query heads.
  __device__ __forceinline__ int first_head(const HopperDecodeLaunch& launch) const {
    return kv_head * launch.group + row_tile * kDecodeRows;
  }
  __device__ __forceinline__ int num_heads(const HopperDecodeLaunch& launch) const {
    return min(kDecodeRows, launch.group - row_tile * kDecodeRows);
  }
};

struct DecodeLine {
  uint32_t before;  // shared address: for each request, and after the last, the pieces before it, of one row each
  int length;

  __device__ __forceinline__ int pieces_before(int request) const {
    uint32_t pieces;
    ptx::load_shared(before + request * sizeof(uint32_t), pieces);
    return static_cast<int>(pieces);
  }

  // The segment that begins at a place of the line, and ends there or with the row.
  __device__ DecodeSegment segment(const HopperDecodeLaunch& launch, int begin, int end) const {
    const DecodeAttentionParams& params = launch.op;
    const int rows = params.num_kv_heads * launch.row_tiles;
    int low = 0, high = params.num_requests;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (pieces_before(middle) * rows <= begin ? low : high) = middle;
    }
    DecodeSegment segment;
    segment.request = low;
    segment.keys = PieceRange::of(ptx::load_global(params.context_lens + low), params.window);
    const int in_request = begin - pieces_before(low) * rows;
    const int row = in_request / segment.keys.count;
    const int in_row = in_request - row * segment.keys.count;
    segment.kv_head = row / launch.row_tiles;
    segment.row_tile = row - segment.kv_head * launch.row_tiles;
    const int count = min(segment.keys.count - in_row, end - begin);
    segment.is_whole_row = count == segment.keys.count;
    segment.piece = segment.keys.first + in_row;
    segment.piece_after = segment.piece + count;
    return segment;
  }
};

// By the whole block: the line, and with it in block 0 the same numbers for the merge. `scratch` has a word a warp.
template <int threads>
__device__ DecodeLine lay_out_line(const HopperDecodeLaunch& launch, uint32_t before, uint32_t scratch) {
  constexpr int kWarps = threads / kWarpSize;
  const DecodeAttentionParams& params = launch.op;
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  const auto set_before = [&](int request, uint32_t pieces) {
    ptx::store_shared(before + request * sizeof(uint32_t), pieces);
    if (blockIdx.x == 0) ptx::store_global(launch.pieces_before + request, static_cast<int32_t>(pieces));
  };
  if (threadIdx.x == 0) set_before(0, 0);
  uint32_t total = 0;
  for (int first = 0; first < params.num_requests; first += threads) {
    const int request = first + static_cast<int>(threadIdx.x);
    const bool exists = request < params.num_requests;
    const int context_len = exists ? ptx::load_global(params.context_lens + request) : 0;
    uint32_t inclusive = PieceRange::of(context_len, params.window).count;
#pragma unroll
    for (int distance = 1; distance < kWarpSize; distance *= 2) {
      const uint32_t lower = __shfl_up_sync(kFullWarp, inclusive, distance);
      if (lane >= distance) inclusive += lower;
    }
    if (lane == kWarpSize - 1) ptx::store_shared(scratch + warp * sizeof(uint32_t), inclusive);
    __syncthreads();
    inclusive += total;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      uint32_t of_warp;
      ptx::load_shared(scratch + w * sizeof(uint32_t), of_warp);
      if (w < warp) inclusive += of_warp;
      total += of_warp;
    }
    if (exists) set_before(request + 1, inclusive);
    __syncthreads();  // the line is there for all, and the scratch is free again
  }
  return {before, static_cast<int>(total) * params.num_kv_heads * launch.row_tiles};
}

}  // namespace cudaprefill
