// decode_attention: one query a request.
//
// A thread block serves one request, one KV head, up to 16 of the query heads that share it (they fill the 16 rows of
// mma.sync) and one split of the keys. Within the split every warp takes each kWarps-th piece of 16 keys and streams it
// through a ring of its own stages, so the loop has no barrier of the block. The warps are merged in shared memory at
// the end, the splits by merge_decode_kernel.
#pragma once

#include <cuda_runtime.h>

#include <ptx/async_copy.cuh>
#include <ptx/memory.cuh>

#include "csrc/cuda/attention/decode_splits.h"
#include "csrc/cuda/attention/kv_fragments.cuh"
#include "csrc/cuda/attention/pages.cuh"
#include "csrc/cuda/attention/partial.cuh"
#include "csrc/cuda/attention/products.cuh"
#include "csrc/cuda/attention/softmax.cuh"
#include "csrc/cuda/attention/tile.cuh"
#include "csrc/cuda/reduce.cuh"
#include "csrc/cuda/stream_order.cuh"
#include "csrc/ops/params.h"

namespace cudaprefill {

constexpr int kDecodeRows = 16;   // query heads a block
constexpr int kDecodePiece = 16;  // keys a warp takes at once
constexpr int kMergeThreads = 128;

struct DecodeLaunch {
  DecodeAttentionParams op;
  ScoreScale scale;
  int block_shift;
  int group;      // query heads a KV head
  int row_tiles;  // blocks that share a KV head: ceil(group / kDecodeRows)
  int num_splits;
  Partials partials;  // one part for each block of the grid; unused with one split
};

// Block index -> what it works on. Splits are innermost, so that the parts of a row are neighbours.
struct DecodeBlock {
  int request, kv_head, row_tile, split;
  int first_head, num_heads;  // query heads

  __device__ static DecodeBlock of(const DecodeLaunch& launch, int block, int num_splits) {
    DecodeBlock b;
    b.split = block % num_splits;
    block /= num_splits;
    b.row_tile = block % launch.row_tiles;
    block /= launch.row_tiles;
    b.kv_head = block % launch.op.num_kv_heads;
    b.request = block / launch.op.num_kv_heads;
    b.num_heads = min(kDecodeRows, launch.group - b.row_tile * kDecodeRows);
    b.first_head = b.kv_head * launch.group + b.row_tile * kDecodeRows;
    return b;
  }
};

template <int head_size, class Kv>
struct DecodeTraits {
  static constexpr int kWarps = head_size > 128 ? 2 : 4;
  // As many bytes in flight whatever the numbers are stored as.
  static constexpr int kStages = (head_size > 64 ? head_size > 80 ? 2 : 3 : 4) * 2 / sizeof(Kv);
  // What the registers are cut for; at head size 256 a block has half the threads, and they need all they can get.
  static constexpr int kResidentBlocks = head_size > 128 ? 1 : kDecodeBlocksPerMultiprocessor;
  using QueryTile = SharedTile<head_size>;
  using Tile = SharedKvTile<head_size, Kv>;

  static constexpr uint32_t kPieceBytes = Tile::bytes(kDecodePiece);
  static constexpr uint32_t kStagesAt = QueryTile::bytes(kDecodeRows);  // after the queries
  static constexpr uint32_t kStageBytes = kWarps * kStages * 2 * kPieceBytes;
  // After the loop, the same place holds the results of the warps: rows of float32, then maxima and sums.
  // Eight floats of padding put the rows of a fragment into different banks.
  static constexpr int kMergeStride = head_size + 8;
  static constexpr uint32_t kMergeRowsBytes = kWarps * kDecodeRows * kMergeStride * sizeof(float);
  static constexpr uint32_t kMergeBytes = kMergeRowsBytes + kWarps * kDecodeRows * 2 * sizeof(float);
  static constexpr uint32_t kSharedBytes = kStagesAt + (kStageBytes > kMergeBytes ? kStageBytes : kMergeBytes);
};

template <class Element, int head_size, class Kv>
__global__ void __launch_bounds__(DecodeTraits<head_size, Kv>::kWarps* kWarpSize,
                                  DecodeTraits<head_size, Kv>::kResidentBlocks)
    decode_attention_kernel(const __grid_constant__ DecodeLaunch launch) {
  using Traits = DecodeTraits<head_size, Kv>;
  using Tile = typename Traits::Tile;
  using QueryTile = typename Traits::QueryTile;
  constexpr int kWarps = Traits::kWarps, kStages = Traits::kStages;
  constexpr int kThreads = kWarps * kWarpSize;
  constexpr int kSteps = head_size / 16;    // k-steps of the first product, steps of columns of the second
  constexpr int kOutTiles = head_size / 8;  // n-tiles of the second
  const DecodeAttentionParams& params = launch.op;
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  const DecodeBlock block = DecodeBlock::of(launch, blockIdx.x, launch.num_splits);

  enter_stream();
  // --- the keys of this split: whole pieces, the same number for every split ---
  const int last_key = ptx::load_global(params.context_lens + block.request);
  const int first_key = params.window > 0 ? max(0, last_key - params.window) : 0;
  const int first_piece = first_key / kDecodePiece;
  const int num_pieces = (last_key + kDecodePiece - 1) / kDecodePiece - first_piece;
  const int pieces_per_split = (num_pieces + launch.num_splits - 1) / launch.num_splits;
  const int split_first = first_piece + block.split * pieces_per_split;
  const int split_last = min(split_first + pieces_per_split, first_piece + num_pieces);

  // --- queries, into shared memory and on into registers ---
  const uint32_t shared = ptx::shared_base();
  const QueryTile query_tile{shared};
  const Element* q = static_cast<const Element*>(params.q.data) + block.request * params.q.token_stride;
  for (int i = threadIdx.x; i < kDecodeRows * QueryTile::kChunks; i += kThreads) {
    const int row = i / QueryTile::kChunks, chunk = i % QueryTile::kChunks;
    const bool valid = row < block.num_heads;
    const Element* source = q + (block.first_head + (valid ? row : 0)) * params.q.head_stride;
    ptx::copy_async_16(query_tile.address(row, chunk), source + chunk * kChunkElements, valid);
  }
  ptx::commit_copies();

  // --- the ring of this warp ---
  const uint32_t ring = shared + Traits::kStagesAt + warp * kStages * 2 * Traits::kPieceBytes;
  const auto key_tile = [&](int stage) { return Tile{ring + stage * 2 * Traits::kPieceBytes}; };
  const auto value_tile = [&](int stage) { return Tile{ring + (stage * 2 + 1) * Traits::kPieceBytes}; };
  const int32_t* table = params.block_table + block.request * params.block_table_stride;
  const PagedRows<Kv> keys(params.k_cache, block.kv_head, table, launch.block_shift);
  const PagedRows<Kv> values(params.v_cache, block.kv_head, table, launch.block_shift);
  // Always closes a group, so that the number of groups says which piece has come.
  const auto load_piece = [&](int piece, int stage) {
    if (piece < split_last) {
      const int key = piece * kDecodePiece;
      copy_rows_async<kDecodePiece>(key_tile(stage), 0, keys, key, first_key, last_key, lane);
      copy_rows_async<kDecodePiece>(value_tile(stage), 0, values, key, first_key, last_key, lane);
    }
    ptx::commit_copies();
  };
#pragma unroll
  for (int s = 0; s < kStages - 1; ++s) load_piece(split_first + warp + s * kWarps, s);

  ptx::wait_for_copies<kStages - 1>();
  __syncthreads();
  uint32_t query[kSteps][4];
#pragma unroll
  for (int k = 0; k < kSteps; ++k) load_query_for<Kv>(query_tile, 0, k, lane, query[k]);

  const ScoreScale score_scale = launch.scale.of_keys(scale_of<Kv>(params.k_cache, block.kv_head));
  OnlineSoftmax softmax;
  float out[kOutTiles][4] = {};
  int stage = 0;
  for (int piece = split_first + warp; piece < split_last; piece += kWarps) {
    ptx::wait_for_copies<kStages - 2>();
    __syncwarp();  // the piece is there for all lanes, and all lanes are done with the one before
    load_piece(piece + (kStages - 1) * kWarps, stage == 0 ? kStages - 1 : stage - 1);

    float scores[2][4] = {};
#pragma unroll
    for (int k = 0; k < kSteps; k += kStepsOfLoad<Kv>) {
      uint32_t fragments[kStepsOfLoad<Kv>][4];
      load_key_fragments<Element, Kv>(key_tile(stage), 0, k, lane, fragments);
#pragma unroll
      for (int s = 0; s < kStepsOfLoad<Kv> && k + s < kSteps; ++s) {
        ptx::multiply_accumulate<Element>(scores[0], query[k + s], fragments[s][0], fragments[s][1]);
        ptx::multiply_accumulate<Element>(scores[1], query[k + s], fragments[s][2], fragments[s][3]);
      }
    }
    score_scale.cap(scores);
    const int key = piece * kDecodePiece;
    if (key < first_key || key + kDecodePiece > last_key) {
#pragma unroll
      for (int n = 0; n < 2; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int column = key + n * 8 + lane % 4 * 2 + i % 2;
          if (column < first_key || column >= last_key) scores[n][i] = kMinusInfinity;
        }
      }
    }
    softmax.update(scores, out, score_scale.factor);
    uint32_t weights[4];
    pack_weights<Element>(scores[0], scores[1], weights);
#pragma unroll
    for (int n = 0; n < kSteps; n += kStepsOfLoad<Kv>) {
      uint32_t fragments[kStepsOfLoad<Kv>][4];
      load_value_fragments<Element, Kv>(value_tile(stage), 0, n, lane, fragments);
#pragma unroll
      for (int s = 0; s < kStepsOfLoad<Kv> && n + s < kSteps; ++s) {
        ptx::multiply_accumulate<Element>(out[2 * (n + s)], weights, fragments[s][0], fragments[s][1]);
        ptx::multiply_accumulate<Element>(out[2 * (n + s) + 1], weights, fragments[s][2], fragments[s][3]);
      }
    }
    stage = stage + 1 == kStages ? 0 : stage + 1;
  }
  softmax.finish();

  // --- merge the warps ---
  ptx::wait_for_copies<0>();
  __syncthreads();
  const uint32_t merge_rows = shared + Traits::kStagesAt;
  const uint32_t merge_state = merge_rows + Traits::kMergeRowsBytes;  // [warp][row] of maximum, sum
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = lane / 4 + 8 * half;
    const uint32_t at = merge_rows + (warp * kDecodeRows + row) * Traits::kMergeStride * sizeof(float);
#pragma unroll
    for (int n = 0; n < kOutTiles; ++n) {
      ptx::store_shared(at + OutColumns<Kv>::element(n, lane) * sizeof(float), OutColumns<Kv>::pair(out, n, half));
    }
    if (lane % 4 == 0) {
      const float2 state{softmax.maximum[half], softmax.sum[half]};
      ptx::store_shared(merge_state + (warp * kDecodeRows + row) * sizeof(float2), state);
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < block.num_heads * (head_size / 2); i += kThreads) {
    const int row = i / (head_size / 2), element = i % (head_size / 2) * 2;
    float2 states[kWarps];
    float maximum = kMinusInfinity;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      ptx::load_shared(merge_state + (w * kDecodeRows + row) * sizeof(float2), states[w]);
      maximum = fmaxf(maximum, states[w].x);
    }
    const float reference = maximum == kMinusInfinity ? 0.0f : maximum;
    float sum = 0;
    float2 merged{0, 0};
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      float2 pair;
      ptx::load_shared(merge_rows + ((w * kDecodeRows + row) * Traits::kMergeStride + element) * sizeof(float), pair);
      const float weight = ptx::exp2_fast((states[w].x - reference) * score_scale.factor);
      sum += weight * states[w].y;
      merged.x += weight * pair.x;
      merged.y += weight * pair.y;
    }
    const float scale = sum > 0 ? scale_of<Kv>(params.v_cache, block.kv_head) / sum : 0.0f;
    merged.x *= scale;
    merged.y *= scale;
    if (launch.num_splits == 1) {
      Element* to = static_cast<Element*>(params.out.data) + block.request * params.out.token_stride +
                    (block.first_head + row) * params.out.head_stride + element;
      ptx::store_global(reinterpret_cast<uint32_t*>(to), ptx::pack<Element>(merged.x, merged.y));
    } else {
      ptx::store_global(reinterpret_cast<float2*>(launch.partials.out_row(blockIdx.x, row) + element), merged);
      if (element == 0) {
        ptx::store_global(launch.partials.log_sum_of(blockIdx.x, row), log2_of_sum(maximum, sum, score_scale.factor));
      }
    }
  }
}

// Merges the splits: a block for each block of the first kernel, splits aside.
template <class Element, int head_size>
__global__ void __launch_bounds__(kMergeThreads) merge_decode_kernel(const __grid_constant__ DecodeLaunch launch) {
  const DecodeBlock block = DecodeBlock::of(launch, blockIdx.x, 1);
  const int64_t first_part = int64_t{blockIdx.x} * launch.num_splits;
  enter_stream();
  for (int i = threadIdx.x; i < block.num_heads * (head_size / 2); i += kMergeThreads) {
    const int row = i / (head_size / 2), element = i % (head_size / 2) * 2;
    const float2 merged = merge_parts(launch.partials, first_part, 1, launch.num_splits, row, element);
    Element* to = static_cast<Element*>(launch.op.out.data) + block.request * launch.op.out.token_stride +
                  (block.first_head + row) * launch.op.out.head_stride + element;
    ptx::store_global(reinterpret_cast<uint32_t*>(to), ptx::pack<Element>(merged.x, merged.y));
  }
}

}  // namespace cudaprefill
