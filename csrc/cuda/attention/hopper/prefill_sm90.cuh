// prefill_attention for compute capability 9.0: wgmma, fed by tensor copies or by cp.async.
//
// One thread block a multiprocessor takes the items of the plan (prefill_plan.h) in turn. Its warpgroups have parts:
//
//     warpgroup 0, the producer    | K0 V0 K1 V1 ...        into a ring of stages (pipeline.cuh)
//     warpgroups 1 and up          | S = Q K^T, softmax, O += P V, each for its own 64 rows
//
// Registers go where they are needed (setmaxnreg). The producer's first warp copies, a page of a tile by each lane; its
// second warp zeroes the rows of V that are no part of the context, for what lies there may be NaN, and 0 * NaN is NaN.
// Pages that lie wholly outside are not read at all: their coordinates are outside of the tensor, and zeros come.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <ptx/async_copy.cuh>
#include <ptx/barrier.cuh>
#include <ptx/mbarrier.cuh>
#include <ptx/memory.cuh>
#include <ptx/tensor_copy.cuh>
#include <ptx/warpgroup.cuh>
#include <ptx/warpgroup_matrix.cuh>

#include "csrc/cuda/attention/hopper/launch.h"
#include "csrc/cuda/attention/hopper/pipeline.cuh"
#include "csrc/cuda/attention/pages.cuh"
#include "csrc/cuda/attention/prefill_rows.cuh"
#include "csrc/cuda/attention/products.cuh"
#include "csrc/cuda/attention/softmax.cuh"

namespace cudaprefill {

constexpr int kWarpsOfGroup = kWarpgroupThreads / kWarpSize;

// The part of an item that all its rows share.
struct ItemView {
  int work;  // (item, KV head) of the plan
  PrefillItem item;
  int kv_head;
  int first_token, num_rows;  // of the request: its first row of q, and its rows of the tile's numbering
  int position_of_token_0;
  int first_visible;  // of any row

  __device__ static ItemView of(const PrefillLaunch& launch, int work) {
    const PrefillAttentionParams& params = launch.op;
    const int index = work / params.num_kv_heads;
    const int4 head = ptx::load_global(reinterpret_cast<const int4*>(launch.items + index));
    ItemView view;
    view.work = work;
    view.item = {head.x, head.y, head.z, head.w, ptx::load_global(&launch.items[index].part), {}};
    view.kv_head = work % params.num_kv_heads;
    view.first_token = ptx::load_global(params.cu_seqlens_q + view.item.request);
    const int query_len = ptx::load_global(params.cu_seqlens_q + view.item.request + 1) - view.first_token;
    view.position_of_token_0 = ptx::load_global(params.context_lens + view.item.request) - query_len;
    view.num_rows = query_len * launch.group;
    const int first_position = view.position_of_token_0 + view.item.first_row / launch.group;
    view.first_visible = params.window > 0 ? max(0, first_position - params.window + 1) : 0;
    return view;
  }

  // Whether rows [key, key + rows) are part of what the tile sees: wholly, or at all.
  __device__ __forceinline__ bool has_all(int key, int rows) const {
    return key >= first_visible && key + rows <= item.last_key;
  }
  __device__ __forceinline__ bool has_any(int key, int rows) const {
    return key + rows > first_visible && key < item.last_key;
  }
  // Whether a page of the tile at `key` is there in part.
  __device__ __forceinline__ bool has_partial_page(int key, int keys) const {
    const bool at_the_beginning = first_visible > key && first_visible < key + keys && first_visible % kPageRows != 0;
    const bool at_the_end = item.last_key > key && item.last_key < key + keys && item.last_key % kPageRows != 0;
    return at_the_beginning || at_the_end;
  }
};

// Calls visit(view) for every item of this thread block, by every thread.
template <class Visit>
__device__ __forceinline__ void for_each_item(const PrefillLaunch& launch, Visit visit) {
  const auto num_work = [&] { return ptx::load_global(&launch.counts->num_items) * launch.op.num_kv_heads; };
  for (int work = blockIdx.x; work < num_work(); work += gridDim.x) visit(ItemView::of(launch, work));
}

// --- the producer
// -----------------------------------------------------------------------------------------------------

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

// --- a consumer
// -------------------------------------------------------------------------------------------------------

// Barrier 0 is that of the block.
__device__ __forceinline__ void sync_warpgroup(int consumer) {
  ptx::named_barrier_sync(1 + consumer, kWarpgroupThreads);
}

// Copies the 64 rows of a warpgroup, each warp its own 16.
template <class Element, int head_size>
__device__ void load_queries(const PrefillLaunch& launch, const OperandTile<head_size>& tile, const ItemView& view,
                             int warp_row, int lane) {
  using Tile = OperandTile<head_size>;
  const HeadRows& q = launch.op.q;
  const Element* rows = static_cast<const Element*>(q.data) + view.first_token * q.token_stride;
  for (int i = lane; i < 16 * Tile::kChunks; i += kWarpSize) {
    const int row = warp_row + i / Tile::kChunks, chunk = i % Tile::kChunks;
    uint4 elements{0, 0, 0, 0};
    if (view.item.first_row + row < view.num_rows) {
      const QueryRow from = QueryRow::of(view.item.first_row + row, launch.group);
      elements = ptx::load_global(reinterpret_cast<const uint4*>(
          rows + from.token * q.token_stride + (view.kv_head * launch.group + from.head) * q.head_stride +
          chunk * kChunkElements));
    }
    ptx::store_shared(tile.address(row, chunk), elements);
  }
}

// Writes 16 rows of a warp: normalised to `out`, by way of their place in shared memory, or as a part of a split tile.
template <class Element, int head_size>
__device__ void store_rows(const PrefillLaunch& launch, const OperandTile<head_size>& tile, const ItemView& view,
                           int warp_row, int lane, OnlineSoftmax& softmax, float (&out)[head_size / 8][4]) {
  using Tile = OperandTile<head_size>;
  const PrefillAttentionParams& params = launch.op;
  const bool whole = view.item.part == PrefillItem::kWhole;
  softmax.finish();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = warp_row + half * 8 + lane / 4;
    const float sum = softmax.sum[half];
    const float scale = sum > 0 ? 1 / sum : 0.0f;
    const int64_t part = int64_t{view.item.part} * params.num_kv_heads + view.kv_head;
    if (!whole && lane % 4 == 0) {
      ptx::store_global(launch.partials.log_sum_of(part, row),
                        log2_of_sum(softmax.maximum[half], sum, launch.scale.factor));
    }
#pragma unroll
    for (int n = 0; n < head_size / 8; ++n) {
      const float low = out[n][2 * half] * scale, high = out[n][2 * half + 1] * scale;
      if (whole) {
        ptx::store_shared(tile.address(row, n) + lane % 4 * 4, ptx::pack<Element>(low, high));
      } else {
        float* to = launch.partials.out_row(part, row) + n * 8 + lane % 4 * 2;
        ptx::store_global(reinterpret_cast<float2*>(to), float2{low, high});
      }
    }
  }
  if (!whole) return;
  __syncwarp();
  Element* rows = static_cast<Element*>(params.out.data) + view.first_token * params.out.token_stride;
  for (int i = lane; i < 16 * Tile::kChunks; i += kWarpSize) {
    const int row = warp_row + i / Tile::kChunks, chunk = i % Tile::kChunks;
    if (view.item.first_row + row >= view.num_rows) break;
    const QueryRow at = QueryRow::of(view.item.first_row + row, launch.group);
    uint4 elements;
    ptx::load_shared(tile.address(row, chunk), elements);
    ptx::store_global(reinterpret_cast<uint4*>(rows + at.token * params.out.token_stride +
                                               (view.kv_head * launch.group + at.head) * params.out.head_stride +
                                               chunk * kChunkElements),
                      elements);
  }
}

// Warpgroups take turns: while one has the tensor cores, the others are at their exponentials. A turn is passed on when
// both products of a step are issued.
template <int consumers, bool in_turns>
struct Turns {
  static constexpr int kFirstBarrier = 1 + consumers;
  int consumer;

  __device__ __forceinline__ void begin() const {
    if (in_turns && consumer == 0) pass_to(0);  // the first turn
  }
  __device__ __forceinline__ void take() const {
    if (in_turns) ptx::named_barrier_sync(kFirstBarrier + consumer, 2 * kWarpgroupThreads);
  }
  __device__ __forceinline__ void pass() const {
    if (in_turns) pass_to(consumer + 1 < consumers ? consumer + 1 : 0);
  }

 private:
  __device__ __forceinline__ void pass_to(int next) const {
    ptx::named_barrier_arrive(kFirstBarrier + next, 2 * kWarpgroupThreads);
  }
};

// The products of one step are on their way while the softmax of the step before is computed:
//
//     tensor cores | S0        S1   O0        S2   O1             O2
//     softmax      |      P0             P1             P2
//
// S1 needs nothing of P0, so it is issued first; O0 += P0 V0 follows it, and P1 is computed when S1 is there. Scores
// and weights are then in registers at once: at head size 64, whose three consumers have 160 each, they are not
// (kOverlap), and the consumers only overlap with one another.
template <class Element, int head_size>
__device__ void consume(const HopperPrefillLaunch& launch, const PrefillMemory<head_size>& memory, int consumer,
                        int warp, int lane) {
  using Traits = HopperPrefillTraits<head_size>;
  constexpr int kKeys = Traits::kKeys;
  const PrefillLaunch& common = launch.common;
  const auto barriers = memory.barriers();
  const auto queries = memory.queries();
  const int first_row = consumer * kWarpgroupRows, warp_row = first_row + warp * 16;
  const Turns<Traits::kConsumers, Traits::kInTurns> turns{consumer};
  turns.begin();
  PipelineStep<Traits::kStages> step;  // of the keys; the values follow one tile behind
  for_each_item(common, [&](const ItemView& view) {
    load_queries<Element>(common, queries, view, warp_row, lane);
    ptx::fence_proxy_async();
    sync_warpgroup(consumer);

    OnlineSoftmax softmax;
    float out[head_size / 8][4] = {};
    float scores[kKeys / 8][4];
    uint32_t weights[kKeys / 16][4];
    const int window = common.op.window;
    int positions[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      positions[half] = row_position(common, view.position_of_token_0,
                                     view.item.first_row + warp_row + half * 8 + lane / 4, view.num_rows);
    }
    const auto issue_scores = [&] {
      const auto keys = memory.keys(step.stage());
      ptx::mbarrier_wait(barriers.keys_full(step.stage()), step.parity());
      turns.take();
      ptx::fence_products();
#pragma unroll
      for (int k = 0; k < head_size / 16; ++k) {
        ptx::multiply_shared<Element, false>(scores, queries.along_elements(first_row, k), keys.along_elements(0, k),
                                             k > 0);
      }
      ptx::commit_products();
    };
    const auto issue_out = [&](PipelineStep<Traits::kStages> value_step) {
      const auto values = memory.values(value_step.stage());
      ptx::mbarrier_wait(barriers.values_full(value_step.stage()), value_step.parity());
      ptx::fence_products();
#pragma unroll
      for (int k = 0; k < kKeys / 16; ++k) {
        ptx::multiply_registers<Element, true>(out, weights[k], values.along_rows(k), true);
      }
      ptx::commit_products();
    };
    const auto release_keys = [&] {
      ptx::pin_accumulators(scores);
      if (lane == 0) ptx::mbarrier_arrive(barriers.keys_empty(step.stage()));
    };
    const auto release_values = [&](PipelineStep<Traits::kStages> value_step) {
      ptx::pin_accumulators(out);
      if (lane == 0) ptx::mbarrier_arrive(barriers.values_empty(value_step.stage()));
    };
    // Scores become weights, in place.
    const auto weigh = [&](int key, float (&correction)[2]) {
      common.scale.cap(scores);
      // The upper row sees no further than the lower one, and the lower one no earlier keys than the upper one.
      if (key + kKeys > positions[0] + 1 || (window > 0 && key < positions[1] - window + 1)) {
#pragma unroll
        for (int half = 0; half < 2; ++half) mask_half(scores, half, common, positions[half], key, lane);
      }
      softmax.weigh(scores, common.scale.factor, correction);
    };
    const auto pack = [&] {
#pragma unroll
      for (int k = 0; k < kKeys / 16; ++k) pack_weights<Element>(scores[2 * k], scores[2 * k + 1], weights[k]);
    };

    float correction[2];
    if constexpr (Traits::kOverlap) {
      issue_scores();
      turns.pass();
      ptx::wait_for_products<0>();
      release_keys();
      weigh(view.item.first_key, correction);  // nothing has been accumulated that it would correct
      pack();
      step.advance();
      for (int key = view.item.first_key + kKeys; key < view.item.last_key; key += kKeys) {
        issue_scores();
        issue_out(step.before());
        turns.pass();
        ptx::wait_for_products<1>();  // the scores
        release_keys();
        weigh(key, correction);
        ptx::wait_for_products<0>();  // what the weights before gave
        release_values(step.before());
        OnlineSoftmax::rescale(out, correction);
        ptx::pin_accumulators(scores);  // not packed before, for the weights in use are in registers, too
        pack();
        step.advance();
      }
      issue_out(step.before());
      ptx::wait_for_products<0>();
      release_values(step.before());
    } else {
      for (int key = view.item.first_key; key < view.item.last_key; key += kKeys) {
        issue_scores();
        turns.pass();
        ptx::wait_for_products<0>();
        release_keys();
        weigh(key, correction);
        OnlineSoftmax::rescale(out, correction);
        pack();
        issue_out(step);
        ptx::wait_for_products<0>();
        release_values(step);
        step.advance();
      }
    }

    sync_warpgroup(consumer);  // all are done with the queries, whose place the results take
    // Worked out and looked up once more: while products run, registers are better used.
    const int same_lane = ptx::anew(lane), same_row = ptx::anew(warp_row);
    store_rows<Element>(common, queries, ItemView::of(common, view.work), same_row, same_lane, softmax, out);
    __syncwarp();  // the next queries overwrite the results
  });
}

template <class Element, int head_size, KvCopies copies>
__global__ void __launch_bounds__(HopperPrefillTraits<head_size>::kThreads, 1)
    prefill_sm90_kernel(const __grid_constant__ HopperPrefillLaunch launch) {
  using Traits = HopperPrefillTraits<head_size>;
  const PrefillMemory<head_size> memory(ptx::shared_base());
  // From one lane, so that the compiler knows that the warp agrees.
  const int warp_of_block = __shfl_sync(kFullWarp, static_cast<int>(threadIdx.x / kWarpSize), 0);
  const int lane = threadIdx.x % kWarpSize, warp = warp_of_block % kWarpsOfGroup;
  const int warpgroup = warp_of_block / kWarpsOfGroup;
  if (threadIdx.x == 0) {
    const int producers = copies == KvCopies::kTensor ? 1 : kWarpsOfGroup;
    memory.barriers().init(producers, Traits::kConsumers * kWarpsOfGroup);
  }
  __syncthreads();
  if (warpgroup == 0) {
    ptx::decrease_registers_to<Traits::kProducerRegisters>();
    if constexpr (copies == KvCopies::kTensor) {
      if (warp == 0) produce_by_tensor_copies(launch, memory, lane);
      if (warp == 1) zero_rows_outside(launch, memory, lane);
    } else {
      produce_by_async_copies<Element>(launch, memory, warp, lane);
    }
  } else {
    ptx::increase_registers_to<Traits::kConsumerRegisters>();
    consume<Element>(launch, memory, warpgroup - 1, warp, lane);
  }
}

}  // namespace cudaprefill
