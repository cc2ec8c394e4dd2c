// prefill_attention: the new tokens of several requests, over keys and values in the paged cache.
//
// A persistent grid takes the items of the plan (prefill_plan.h) in turn, longest first. An item is a tile of query
// rows and the keys they see; each warp owns kRowTiles * 16 of the rows. Keys and values stream through two stages
// each:
//
//     copies  | K0 V0   K1    V1    K2    V2
//     warps   |    S0  P0 O0 | S1  P1 O1 | ...       S = Q K^T, P = softmax, O += P V
//
// While a tile is multiplied, the next one is on its way. What is stored in 8 bits comes into a place of its own, and
// the lanes that have copied it widen it into the one stage that there is, once for all warps; then the place is free
// for the next copies.
#pragma once

#include <cuda_runtime.h>

#include <ptx/async_copy.cuh>
#include <ptx/memory.cuh>

#include "csrc/cuda/attention/pages.cuh"
#include "csrc/cuda/attention/partial.cuh"
#include "csrc/cuda/attention/prefill_launch.h"
#include "csrc/cuda/attention/prefill_plan.h"
#include "csrc/cuda/attention/prefill_rows.cuh"
#include "csrc/cuda/attention/products.cuh"
#include "csrc/cuda/attention/softmax.cuh"
#include "csrc/cuda/attention/tile.cuh"
#include "csrc/cuda/kv_number.cuh"
#include "csrc/cuda/reduce.cuh"
#include "csrc/cuda/stream_order.cuh"
#include "csrc/ops/params.h"

namespace cudaprefill {

constexpr int kPrefillWarps = 4;
constexpr int kPrefillThreads = kPrefillWarps * kWarpSize;

template <int head_size, class Kv>
struct PrefillTraits {
  using Tile = SharedTile<head_size>;
  static constexpr int kRowTiles = head_size > 128 ? 1 : 2;  // of 16 rows, a warp
  static constexpr int kRows = kPrefillWarps * kRowTiles * 16;
  static constexpr int kKeys = head_size > 80 ? 32 : 64;
  static constexpr int kStages = kHasScales<Kv> ? 1 : 2;
  static constexpr int kKeysPerWarp = kKeys / kPrefillWarps;  // that a warp copies

  static constexpr uint32_t kStagesAt = Tile::bytes(kRows);  // after the queries
  // What is stored in 8 bits, after the stages.
  using StoredTile = SharedKvTile<head_size, Kv>;
  static constexpr uint32_t kStoredAt = kStagesAt + 2 * kStages * Tile::bytes(kKeys);
  static constexpr uint32_t kSharedBytes = kStoredAt + (kHasScales<Kv> ? 2 * StoredTile::bytes(kKeys) : 0);
};

// Rows that this lane has copied, by copy_rows_async of as many rows, as Elements.
template <int rows, class Element, int head_size>
__device__ __forceinline__ void widen_rows(const SharedKvTile<head_size, Float8>& from, const SharedTile<head_size>& to,
                                           int row, int lane) {
  constexpr int kChunks = SharedKvTile<head_size, Float8>::kChunks, kPieces = rows * kChunks;
#pragma unroll 1  // registers are short
  for (int piece = lane; piece < kPieces; piece += kWarpSize) {
    const int r = row + piece / kChunks, chunk = piece % kChunks;
    uint4 numbers;
    ptx::load_shared(from.address(r, chunk), numbers);
    ptx::store_shared(to.address(r, 2 * chunk),
                      uint4{widen_first_two<Element>(numbers.x), widen_last_two<Element>(numbers.x),
                            widen_first_two<Element>(numbers.y), widen_last_two<Element>(numbers.y)});
    ptx::store_shared(to.address(r, 2 * chunk + 1),
                      uint4{widen_first_two<Element>(numbers.z), widen_last_two<Element>(numbers.z),
                            widen_first_two<Element>(numbers.w), widen_last_two<Element>(numbers.w)});
  }
}

template <class Element, int head_size, class Kv>
__device__ void run_prefill_item(const PrefillLaunch& launch, const PrefillItem& item, int kv_head) {
  using Traits = PrefillTraits<head_size, Kv>;
  using StoredTile = typename Traits::StoredTile;
  using Tile = typename Traits::Tile;
  constexpr int kRowTiles = Traits::kRowTiles, kRows = Traits::kRows, kKeys = Traits::kKeys;
  constexpr int kSteps = head_size / 16;    // k-steps of the first product
  constexpr int kKeyTiles = kKeys / 8;      // n-tiles of the first product
  constexpr int kOutTiles = head_size / 8;  // n-tiles of the second
  const PrefillAttentionParams& params = launch.op;
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;

  const int first_token = ptx::load_global(params.cu_seqlens_q + item.request);
  const int query_len = ptx::load_global(params.cu_seqlens_q + item.request + 1) - first_token;
  const int position_of_token_0 = ptx::load_global(params.context_lens + item.request) - query_len;
  const int num_rows = query_len * launch.group;
  const int warp_row = warp * kRowTiles * 16;  // of the tile

  // --- what the tile as a whole sees ---
  const int first_position = position_of_token_0 + item.first_row / launch.group;
  const int last_position = position_of_token_0 + (min(item.first_row + kRows, num_rows) - 1) / launch.group;
  const int first_visible = params.window > 0 ? max(0, first_position - params.window + 1) : 0;
  const int all_see_from = params.window > 0 ? last_position - params.window + 1 : 0;
  const int all_see_to = first_position + 1;

  // --- copies ---
  const uint32_t shared = ptx::shared_base();
  const Tile query_tile{shared};
  const auto key_tile = [&](int stage) { return Tile{shared + Traits::kStagesAt + stage * 2 * Tile::bytes(kKeys)}; };
  const auto value_tile = [&](int stage) { return Tile{key_tile(stage).base + Tile::bytes(kKeys)}; };
  const int own_key = warp * Traits::kKeysPerWarp;
  const int32_t* table = params.block_table + item.request * params.block_table_stride;
  const PagedRows<Kv> keys(params.k_cache, kv_head, table, launch.block_shift);
  const PagedRows<Kv> values(params.v_cache, kv_head, table, launch.block_shift);
  // Both always close a group, so that the number of groups says what has come.
  const auto copy_tile = [&](const auto& tile, const PagedRows<Kv>& rows, int key) {
    if (key < item.last_key) {
      copy_rows_async<Traits::kKeysPerWarp>(tile, own_key, rows, key + own_key, first_visible, item.last_key, lane);
    }
    ptx::commit_copies();
  };
  const auto copy_keys = [&](int stage, int key) {
    if constexpr (kHasScales<Kv>) {
      copy_tile(StoredTile{shared + Traits::kStoredAt}, keys, key);
    } else {
      copy_tile(key_tile(stage), keys, key);
    }
  };
  const auto copy_values = [&](int stage, int key) {
    if constexpr (kHasScales<Kv>) {
      copy_tile(StoredTile{shared + Traits::kStoredAt + StoredTile::bytes(kKeys)}, values, key);
    } else {
      copy_tile(value_tile(stage), values, key);
    }
  };
  const Element* q = static_cast<const Element*>(params.q.data) + first_token * params.q.token_stride;
  for (int i = threadIdx.x; i < kRows * Tile::kChunks; i += kPrefillThreads) {
    const int row = i / Tile::kChunks, chunk = i % Tile::kChunks;
    const bool valid = item.first_row + row < num_rows;
    const QueryRow from = QueryRow::of(valid ? item.first_row + row : 0, launch.group);
    const Element* source =
        q + from.token * params.q.token_stride + (kv_head * launch.group + from.head) * params.q.head_stride;
    ptx::copy_async_16(query_tile.address(row, chunk), source + chunk * kChunkElements, valid);
  }
  copy_keys(0, item.first_key);  // closes the group of the queries, too
  copy_values(0, item.first_key);

  const ScoreScale score_scale = launch.scale.of_keys(scale_of<Kv>(params.k_cache, kv_head));
  OnlineSoftmax softmax[kRowTiles];
  float out[kRowTiles][kOutTiles][4] = {};
  int stage = 0;
  for (int key = item.first_key; key < item.last_key; key += kKeys) {
    ptx::wait_for_copies<1>();  // the keys; the values may still be on their way
    if constexpr (kHasScales<Kv>) {
      widen_rows<Traits::kKeysPerWarp, Element, head_size>({shared + Traits::kStoredAt}, key_tile(0), own_key, lane);
    }
    __syncthreads();  // for all warps, and all are done with the tile before
    copy_keys(1 - stage, key + kKeys);

    float scores[kRowTiles][kKeyTiles][4] = {};
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      uint32_t query[kRowTiles][4];
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) load_query(query_tile, warp_row + m * 16, k, lane, query[m]);
#pragma unroll
      for (int n = 0; n < kKeyTiles / 2; ++n) {
        uint32_t fragment[4];
        load_keys(key_tile(stage), n * 16, k, lane, fragment);
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
          ptx::multiply_accumulate<Element>(scores[m][2 * n], query[m], fragment[0], fragment[1]);
          ptx::multiply_accumulate<Element>(scores[m][2 * n + 1], query[m], fragment[2], fragment[3]);
        }
      }
    }
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) score_scale.cap(scores[m]);
    if (key < all_see_from || key + kKeys > all_see_to) {
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        mask_scores(scores[m], launch, position_of_token_0, item.first_row + warp_row + m * 16, num_rows, key, lane);
      }
    }
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) softmax[m].update(scores[m], out[m], score_scale.factor);

    ptx::wait_for_copies<1>();  // the values; the next keys may still be on their way
    if constexpr (kHasScales<Kv>) {
      widen_rows<Traits::kKeysPerWarp, Element, head_size>({shared + Traits::kStoredAt + StoredTile::bytes(kKeys)},
                                                           value_tile(0), own_key, lane);
    }
    __syncthreads();
    copy_values(1 - stage, key + kKeys);
#pragma unroll
    for (int k = 0; k < kKeyTiles / 2; ++k) {
      uint32_t weights[kRowTiles][4];
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) pack_weights<Element>(scores[m][2 * k], scores[m][2 * k + 1], weights[m]);
#pragma unroll
      for (int n = 0; n < kOutTiles / 2; ++n) {
        uint32_t fragment[4];
        load_values(value_tile(stage), k * 16, n, lane, fragment);
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
          ptx::multiply_accumulate<Element>(out[m][2 * n], weights[m], fragment[0], fragment[1]);
          ptx::multiply_accumulate<Element>(out[m][2 * n + 1], weights[m], fragment[2], fragment[3]);
        }
      }
    }
    stage = (stage + 1) % Traits::kStages;
  }

  // --- results ---
  const float value_scale = scale_of<Kv>(params.v_cache, kv_head);
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
    softmax[m].finish();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int tile_row = warp_row + m * 16 + half * 8 + lane / 4;
      const float sum = softmax[m].sum[half];
      const float scale = sum > 0 ? value_scale / sum : 0.0f;
      if (item.part != PrefillItem::kWhole) {
        const int64_t part = int64_t{item.part} * params.num_kv_heads + kv_head;
        float* row = launch.partials.out_row(part, tile_row) + lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < kOutTiles; ++n) {
          const float2 pair{out[m][n][2 * half] * scale, out[m][n][2 * half + 1] * scale};
          ptx::store_global(reinterpret_cast<float2*>(row + n * 8), pair);
        }
        if (lane % 4 == 0) {
          ptx::store_global(launch.partials.log_sum_of(part, tile_row),
                            log2_of_sum(softmax[m].maximum[half], sum, score_scale.factor));
        }
      } else {
        // By way of the queries' place in shared memory, whose rows are this warp's own by now, to 16-byte stores.
#pragma unroll
        for (int n = 0; n < kOutTiles; ++n) {
          ptx::store_shared(query_tile.address(tile_row, n) + lane % 4 * 4,
                            ptx::pack<Element>(out[m][n][2 * half] * scale, out[m][n][2 * half + 1] * scale));
        }
      }
    }
  }
  if (item.part != PrefillItem::kWhole) return;
  __syncwarp();
  Element* to = static_cast<Element*>(params.out.data) + first_token * params.out.token_stride;
  for (int i = lane; i < kRowTiles * 16 * Tile::kChunks; i += kWarpSize) {
    const int row = warp_row + i / Tile::kChunks, chunk = i % Tile::kChunks;
    if (item.first_row + row >= num_rows) break;
    const QueryRow at = QueryRow::of(item.first_row + row, launch.group);
    uint4 elements;
    ptx::load_shared(query_tile.address(row, chunk), elements);
    ptx::store_global(
        reinterpret_cast<uint4*>(to + at.token * params.out.token_stride +
                                 (kv_head * launch.group + at.head) * params.out.head_stride + chunk * kChunkElements),
        elements);
  }
}

template <class Element, int head_size, class Kv>
__global__ void __launch_bounds__(kPrefillThreads)
    prefill_attention_kernel(const __grid_constant__ PrefillLaunch launch) {
  enter_stream();
  for (int i = blockIdx.x;; i += gridDim.x) {
    const int num_items = ptx::load_global(&launch.counts->num_items);  // once more, for registers are short
    if (i >= num_items * launch.op.num_kv_heads) return;
    const PrefillWork work = PrefillWork::of(launch, i, num_items);
    const int4 head = ptx::load_global(reinterpret_cast<const int4*>(launch.items + work.item));
    const int part = ptx::load_global(&launch.items[work.item].part);
    const PrefillItem item{head.x, head.y, head.z, head.w, part, false, {}};
    run_prefill_item<Element, head_size, Kv>(launch, item, work.kv_head);
    __syncthreads();  // the next item overwrites the queries
  }
}

// Merges the parts of split tiles. Grid: (bound of the split tiles, KV heads).
template <class Element, int head_size>
__global__ void __launch_bounds__(kPrefillThreads) merge_prefill_kernel(const __grid_constant__ PrefillLaunch launch) {
  enter_stream();
  if (static_cast<int>(blockIdx.x) >= ptx::load_global(&launch.counts->num_split_tiles)) return;
  const PrefillAttentionParams& params = launch.op;
  const int4 words = ptx::load_global(reinterpret_cast<const int4*>(launch.split_tiles + blockIdx.x));
  const SplitTile tile{words.x, words.y, words.z, words.w};
  const int kv_head = blockIdx.y;
  const int first_token = ptx::load_global(params.cu_seqlens_q + tile.request);
  const int num_rows = (ptx::load_global(params.cu_seqlens_q + tile.request + 1) - first_token) * launch.group;
  const int64_t first_part = int64_t{tile.first_part} * params.num_kv_heads + kv_head;
  for (int i = threadIdx.x; i < launch.partials.rows * (head_size / 2); i += kPrefillThreads) {
    const int row = i / (head_size / 2), element = i % (head_size / 2) * 2;
    if (tile.first_row + row >= num_rows) break;
    const float2 merged = merge_parts(launch.partials, first_part, params.num_kv_heads, tile.count, row, element);
    const QueryRow at = QueryRow::of(tile.first_row + row, launch.group);
    Element* to = static_cast<Element*>(params.out.data) + (first_token + at.token) * params.out.token_stride +
                  (kv_head * launch.group + at.head) * params.out.head_stride + element;
    ptx::store_global(reinterpret_cast<uint32_t*>(to), ptx::pack<Element>(merged.x, merged.y));
  }
}

}  // namespace cudaprefill
