// The producer of the Hopper prefill: keys and values, from pages into the stages, by tensor copies or by cp.async.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <ptx/async_copy.cuh>
#include <ptx/mbarrier.cuh>
#include <ptx/memory.cuh>
#include <ptx/tensor_copy.cuh>

#include "csrc/cuda/attention/hopper/item_view.cuh"
#include "csrc/cuda/attention/hopper/pipeline.cuh"
#include "csrc/cuda/attention/hopper/prefill_launch.h"
#include "csrc/cuda/attention/pages.cuh"
#include "csrc/cuda/attention/prefill_rows.cuh"
#include "csrc/cuda/kv_number.cuh"
#include "csrc/cuda/reduce.cuh"

namespace cudaprefill {

// Issues the copies of one tile, a page by each lane, and tells the mbarrier how much will come.
template <int head_size>
__device__ __forceinline__ void copy_pages(const OperandTile<head_size>& tile, const TensorMap& map, int heads_of_block,
                                           const PrefillLaunch& launch, const ItemView& view, int key, uint32_t full,
                                           int lane) {
  using Traits = HopperPrefillTraits<head_size>;
  if (lane == 0) ptx::mbarrier_arrive_expecting(full, Traits::kTileBytes);
  __syncwarp();
  if (lane >= Traits::kPages) return;
  const int first = key + lane * kPageRows;
  int group = 0, index = -1;  // outside of the tensor: zeros
  if (view.has_any(first, kPageRows)) {
    const int32_t* table = launch.op.block_table + view.request * launch.op.block_table_stride;
    const int block = ptx::load_global(table + (first >> launch.block_shift));
    group = (first & ((1 << launch.block_shift) - 1)) / kBrickRows;
    index = block * heads_of_block + view.kv_head;
  }
  const int coordinates[5] = {0, 0, 0, group, index};
  ptx::copy_tensor_async(tile.base + OperandTile<head_size>::bytes(lane * kPageRows), map, coordinates, full);
}

template <int head_size>
__device__ void produce_by_tensor_copies(const HopperPrefillLaunch& launch, const PrefillMemory<head_size>& memory,
                                         int lane) {
  using Traits = HopperPrefillTraits<head_size>;
  const auto barriers = memory.barriers();
  PipelineStep<Traits::kStages> step;
  for_each_item(launch.common, [&](const ItemView& view) {
    for (int key = view.first_key; key < view.last_key; key += Traits::kKeys) {
      ptx::mbarrier_wait(barriers.keys_empty(step.stage()), step.parity() ^ 1);
      copy_pages(memory.keys(step.stage()), launch.keys, launch.heads_of_keys, launch.common, view, key,
                 barriers.keys_full(step.stage()), lane);
      ptx::mbarrier_wait(barriers.values_empty(step.stage()), step.parity() ^ 1);
      const bool partial = view.has_partial_page(key, Traits::kKeys);
      copy_pages(memory.values(step.stage()), launch.values, launch.heads_of_values, launch.common, view, key,
                 partial ? barriers.values_landed(step.stage()) : barriers.values_full(step.stage()), lane);
      step.advance();
    }
  });
}

// Follows the producer to the tiles whose values are there in part, zeroes the rest of their pages and passes them on.
template <int head_size>
__device__ void zero_rows_outside(const HopperPrefillLaunch& launch, const PrefillMemory<head_size>& memory, int lane) {
  using Traits = HopperPrefillTraits<head_size>;
  using Tile = OperandTile<head_size>;
  const auto barriers = memory.barriers();
  PipelineStep<Traits::kStages> step;
  uint32_t landed_parities = 0;  // a bit a stage
  for_each_item(launch.common, [&](const ItemView& view) {
    for (int key = view.first_key; key < view.last_key; key += Traits::kKeys) {
      if (view.has_partial_page(key, Traits::kKeys)) {
        ptx::mbarrier_wait(barriers.values_landed(step.stage()), landed_parities >> step.stage() & 1);
        landed_parities ^= 1u << step.stage();
        const Tile tile = memory.values(step.stage());
        for (int i = lane; i < Traits::kKeys * Tile::kChunks; i += kWarpSize) {
          const int row = i / Tile::kChunks, page = row / kPageRows * kPageRows;
          if (view.has_all(key + row, 1) || !view.has_any(key + page, kPageRows)) continue;
          ptx::store_shared(tile.address(row, i % Tile::kChunks), uint4{0, 0, 0, 0});
        }
        ptx::fence_proxy_async();
        __syncwarp();
        if (lane == 0) ptx::mbarrier_arrive(barriers.values_full(step.stage()));
      }
      step.advance();
    }
  });
}

// Copies the queries of an item, rows shared out over some warps, once their stage is empty.
template <class Element, class Kv, int head_size>
__device__ void load_queries(const PrefillLaunch& launch, const PrefillMemory<head_size>& memory, int stage,
                             uint32_t parity, const ItemView& view, int warp, int warps, int lane) {
  using Traits = HopperPrefillTraits<head_size>;
  using Tile = OperandTile<head_size>;
  const auto barriers = memory.barriers();
  const HeadRows& q = launch.op.q;
  ptx::mbarrier_wait(barriers.queries_empty(stage), parity ^ 1);
  if (warp == 0 && lane == 0) view.store(memory.item(stage));
  if (!view.is_none()) {
    if constexpr (kHasScales<Kv>) {
      if (warp == 0 && lane == 0) {
        ptx::store_shared(memory.item(stage) + ItemView::kKeyScaleAt, scale_of<Kv>(launch.op.k_cache, view.kv_head));
      }
    }
    const Element* rows = static_cast<const Element*>(q.data) + view.first_token * q.token_stride;
#pragma unroll 1  // the producer has few registers, and an item's time to do it in
    for (int i = warp * kWarpSize + lane; i < Traits::kRows * Tile::kChunks; i += warps * kWarpSize) {
      const int row = i / Tile::kChunks, chunk = i % Tile::kChunks;
      uint4 elements{0, 0, 0, 0};
      if (view.first_row + row < view.num_rows) {
        const QueryRow from = QueryRow::of(view.first_row + row, launch.group);
        elements = ptx::load_global(reinterpret_cast<const uint4*>(
            rows + from.token * q.token_stride + (view.kv_head * launch.group + from.head) * q.head_stride +
            chunk * kChunkElements));
      }
      ptx::store_shared(memory.queries(stage).address(row, chunk), elements);
    }
  }
  ptx::fence_proxy_async();
  __syncwarp();
  if (lane == 0) ptx::mbarrier_arrive(barriers.queries_full(stage));
}

// The queries of all items, ahead of their turn, and the word that there are no more.
template <class Element, int head_size>
__device__ void produce_queries(const PrefillLaunch& launch, const PrefillMemory<head_size>& memory, int warp,
                                int warps, int lane) {
  PipelineStep<HopperPrefillTraits<head_size>::kQueryStages> step;
  for_each_item(launch, [&](const ItemView& view) {
    load_queries<Element, Element>(launch, memory, step.stage(), step.parity(), view, warp, warps, lane);
    step.advance();
  });
  load_queries<Element, Element>(launch, memory, step.stage(), step.parity(), ItemView::none(), warp, warps, lane);
}

// The second producer: all of its warps copy, queries first and then a page each in turn. A tile is announced one step
// later, when its copies have come while the next ones run; the last one of an item before the next queries are waited
// for.
template <class Element, int head_size>
__device__ void produce_by_async_copies(const HopperPrefillLaunch& launch, const PrefillMemory<head_size>& memory,
                                        int warp, int lane) {
  using Traits = HopperPrefillTraits<head_size>;
  using Tile = OperandTile<head_size>;
  const PrefillLaunch& common = launch.common;
  const auto barriers = memory.barriers();
  PipelineStep<Traits::kStages> step;
  PipelineStep<Traits::kQueryStages> query_step;
  uint32_t issued = 0;  // the mbarrier of the tile whose copies are on their way
  const auto announce = [&] {
    if (issued == 0) return;
    ptx::fence_proxy_async();
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(issued);
  };
  const auto copy_tile = [&](const Tile& tile, const PagedRows<Element>& rows, const ItemView& view, int key,
                             uint32_t full) {
    for (int page = warp; page < Traits::kPages; page += kWarpsOfGroup) {
      const int first = key + page * kPageRows;
      const Element* source = view.has_any(first, kPageRows) ? rows.row(first) : rows.data;
      for (int i = lane; i < kPageRows * Tile::kChunks; i += kWarpSize) {
        const int row = i / Tile::kChunks, chunk = i % Tile::kChunks;
        ptx::copy_async_16(tile.address(page * kPageRows + row, chunk),
                           source + row * rows.slot_stride + chunk * kChunkElements, view.has_all(first + row, 1));
      }
    }
    ptx::commit_copies();
    ptx::wait_for_copies<1>();  // the tile before has come
    announce();
    issued = full;
  };
  const auto load_queries_of = [&](const ItemView& view) {
    load_queries<Element, Element>(common, memory, query_step.stage(), query_step.parity(), view, warp, kWarpsOfGroup,
                                   lane);
    query_step.advance();
  };
  for_each_item(common, [&](const ItemView& view) {
    load_queries_of(view);
    const int32_t* table = common.op.block_table + view.request * common.op.block_table_stride;
    const PagedRows<Element> keys(common.op.k_cache, view.kv_head, table, common.block_shift);
    const PagedRows<Element> values(common.op.v_cache, view.kv_head, table, common.block_shift);
    for (int key = view.first_key; key < view.last_key; key += Traits::kKeys) {
      ptx::mbarrier_wait(barriers.keys_empty(step.stage()), step.parity() ^ 1);
      copy_tile(memory.keys(step.stage()), keys, view, key, barriers.keys_full(step.stage()));
      ptx::mbarrier_wait(barriers.values_empty(step.stage()), step.parity() ^ 1);
      copy_tile(memory.values(step.stage()), values, view, key, barriers.values_full(step.stage()));
      step.advance();
    }
    ptx::wait_for_copies<0>();
    announce();
    issued = 0;
  });
  load_queries_of(ItemView::none());
}

// The producer of what is stored as Float8. Copies bring the numbers to a place beside the stages, and the lanes that
// have asked for them widen them into the stage once it is empty, while the next copies are on their way:
//
//     copies | K0  V0     K1     V1     K2             the places: one for keys, one for values
//     widens |     K0 | V0 | K1 | V1 | ...             each full as soon as its last lane is done
template <class Element, int head_size>
__device__ void produce_by_widening_copies(const HopperPrefillLaunch& launch, const PrefillMemory<head_size>& memory,
                                           int warp, int lane) {
  using Traits = HopperPrefillTraits<head_size>;
  using Tile = OperandTile<head_size>;
  using StoredTile = typename PrefillMemory<head_size>::StoredTile;
  const PrefillLaunch& common = launch.common;
  const auto barriers = memory.barriers();
  PipelineStep<Traits::kStages> step;
  PipelineStep<Traits::kQueryStages> query_step;
  const auto load_queries_of = [&](const ItemView& view) {
    load_queries<Element, Float8>(common, memory, query_step.stage(), query_step.parity(), view, warp, kWarpsOfGroup,
                                  lane);
    query_step.advance();
  };
  // Always closes a group, so that the number of groups says what has come. Loops are not unrolled, for the producer
  // has few registers.
  const auto copy_tile = [&](const StoredTile& to, const PagedRows<Float8>& rows, const ItemView& view, int key) {
#pragma unroll 1
    for (int page = warp; page < Traits::kPages && key < view.last_key; page += kWarpsOfGroup) {
      const int first = key + page * kPageRows;
      const Float8* source = view.has_any(first, kPageRows) ? rows.row(first) : rows.data;
#pragma unroll 1
      for (int i = lane; i < kPageRows * StoredTile::kChunks; i += kWarpSize) {
        const int row = i / StoredTile::kChunks, chunk = i % StoredTile::kChunks;
        ptx::copy_async_16(to.address(page * kPageRows + row, chunk),
                           source + row * rows.slot_stride + chunk * kChunkBytes, view.has_all(first + row, 1));
      }
    }
    ptx::commit_copies();
  };
  const auto widen_tile = [&](const StoredTile& from, const Tile& to, uint32_t full) {
    ptx::wait_for_copies<1>();
#pragma unroll 1
    for (int page = warp; page < Traits::kPages; page += kWarpsOfGroup) {
#pragma unroll 2
      for (int i = lane; i < kPageRows * StoredTile::kChunks; i += kWarpSize) {
        const int row = page * kPageRows + i / StoredTile::kChunks, chunk = i % StoredTile::kChunks;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          uint32_t numbers[2];
          ptx::load_shared(from.address(row, chunk) + half * 8, numbers[0]);
          ptx::load_shared(from.address(row, chunk) + half * 8 + 4, numbers[1]);
          ptx::store_shared(to.address(row, 2 * chunk + half),
                            uint4{widen_first_two<Element>(numbers[0]), widen_last_two<Element>(numbers[0]),
                                  widen_first_two<Element>(numbers[1]), widen_last_two<Element>(numbers[1])});
        }
      }
    }
    ptx::fence_proxy_async();
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(full);
  };
  for_each_item(common, [&](const ItemView& view) {
    load_queries_of(view);
    const int32_t* table = common.op.block_table + view.request * common.op.block_table_stride;
    const PagedRows<Float8> keys(common.op.k_cache, view.kv_head, table, common.block_shift);
    const PagedRows<Float8> values(common.op.v_cache, view.kv_head, table, common.block_shift);
    copy_tile(memory.stored_keys(), keys, view, view.first_key);
#pragma unroll 1
    for (int key = view.first_key; key < view.last_key; key += Traits::kKeys) {
      copy_tile(memory.stored_values(), values, view, key);
      ptx::mbarrier_wait(barriers.keys_empty(step.stage()), step.parity() ^ 1);
      widen_tile(memory.stored_keys(), memory.keys(step.stage()), barriers.keys_full(step.stage()));
      copy_tile(memory.stored_keys(), keys, view, key + Traits::kKeys);
      ptx::mbarrier_wait(barriers.values_empty(step.stage()), step.parity() ^ 1);
      widen_tile(memory.stored_values(), memory.values(step.stage()), barriers.values_full(step.stage()));
      step.advance();
    }
  });
  load_queries_of(ItemView::none());
}

}  // namespace cudaprefill
