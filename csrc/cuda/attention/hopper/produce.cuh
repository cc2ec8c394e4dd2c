// The producer of the Hopper prefill: keys and values, from pages into the stages, by tensor copies or by cp.async.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <ptx/async_copy.cuh>
#include <ptx/mbarrier.cuh>
#include <ptx/memory.cuh>
#include <ptx/tensor_copy.cuh>

#include "csrc/cuda/attention/hopper/item_view.cuh"
#include "csrc/cuda/attention/hopper/launch.h"
#include "csrc/cuda/attention/hopper/pipeline.cuh"
#include "csrc/cuda/attention/pages.cuh"
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
    const int32_t* table = launch.op.block_table + view.item.request * launch.op.block_table_stride;
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
    for (int key = view.item.first_key; key < view.item.last_key; key += Traits::kKeys) {
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
    for (int key = view.item.first_key; key < view.item.last_key; key += Traits::kKeys) {
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

// The second producer: all of its warps copy, a page each in turn. A tile is announced one step later, when its copies
// have come while the next ones run.
template <class Element, int head_size>
__device__ void produce_by_async_copies(const HopperPrefillLaunch& launch, const PrefillMemory<head_size>& memory,
                                        int warp, int lane) {
  using Traits = HopperPrefillTraits<head_size>;
  using Tile = OperandTile<head_size>;
  const PrefillLaunch& common = launch.common;
  const auto barriers = memory.barriers();
  PipelineStep<Traits::kStages> step;
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
  for_each_item(common, [&](const ItemView& view) {
    const int32_t* table = common.op.block_table + view.item.request * common.op.block_table_stride;
    const PagedRows<Element> keys(common.op.k_cache, view.kv_head, table, common.block_shift);
    const PagedRows<Element> values(common.op.v_cache, view.kv_head, table, common.block_shift);
    for (int key = view.item.first_key; key < view.item.last_key; key += Traits::kKeys) {
      ptx::mbarrier_wait(barriers.keys_empty(step.stage()), step.parity() ^ 1);
      copy_tile(memory.keys(step.stage()), keys, view, key, barriers.keys_full(step.stage()));
      ptx::mbarrier_wait(barriers.values_empty(step.stage()), step.parity() ^ 1);
      copy_tile(memory.values(step.stage()), values, view, key, barriers.values_full(step.stage()));
      step.advance();
    }
  });
  ptx::wait_for_copies<0>();
  announce();
}

}  // namespace cudaprefill
