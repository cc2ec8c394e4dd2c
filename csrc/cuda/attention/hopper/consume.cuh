// A consumer of the Hopper prefill: a warpgroup with 64 rows of queries, their softmax and their results.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <ptx/barrier.cuh>
#include <ptx/convert.cuh>
#include <ptx/mbarrier.cuh>
#include <ptx/memory.cuh>
#include <ptx/warpgroup.cuh>
#include <ptx/warpgroup_matrix.cuh>

#include "csrc/cuda/attention/hopper/item_view.cuh"
#include "csrc/cuda/attention/hopper/pipeline.cuh"
#include "csrc/cuda/attention/hopper/prefill_launch.h"
#include "csrc/cuda/attention/prefill_rows.cuh"
#include "csrc/cuda/attention/products.cuh"
#include "csrc/cuda/attention/softmax.cuh"
#include "csrc/cuda/kv_number.cuh"
#include "csrc/cuda/reduce.cuh"

namespace cudaprefill {

// Barrier 0 is that of the block.
__device__ __forceinline__ void sync_warpgroup(int consumer) {
  ptx::named_barrier_sync(1 + consumer, kWarpgroupThreads);
}

template <int consumers>
__device__ __forceinline__ void sync_consumers() {
  ptx::named_barrier_sync(1 + 2 * consumers, consumers * kWarpgroupThreads);
}

// Writes 16 rows of a warp, whose sums are complete: normalised to `out`, by way of their place in shared memory, or as
// a part of a split tile.
template <class Element, class Kv, int head_size>
__device__ void store_rows(const PrefillLaunch& launch, const OperandTile<head_size>& tile, const ItemView& view,
                           float factor, int warp_row, int lane, const OnlineSoftmax& softmax,
                           float (&out)[head_size / 8][4]) {
  using Tile = OperandTile<head_size>;
  const PrefillAttentionParams& params = launch.op;
  const bool whole = view.part == PrefillItem::kWhole;
  const float value_scale = scale_of<Kv>(params.v_cache, view.kv_head);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = warp_row + half * 8 + lane / 4;
    const float sum = softmax.sum[half];
    const float scale = sum > 0 ? value_scale / sum : 0.0f;
    const int64_t part = int64_t{view.part} * params.num_kv_heads + view.kv_head;
    if (!whole && lane % 4 == 0) {
      ptx::store_global(launch.partials.log_sum_of(part, row), log2_of_sum(softmax.maximum[half], sum, factor));
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
    if (view.first_row + row >= view.num_rows) break;
    const QueryRow at = QueryRow::of(view.first_row + row, launch.group);
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

// Adds up what the consumers have of a narrow tile, in the first of them: the others leave their outputs, fragment by
// fragment, in the place of the queries, one after another.
template <int head_size>
__device__ __forceinline__ void gather_narrow(const PrefillMemory<head_size>& memory, uint32_t outputs, int consumer,
                                              int tile_row, int lane, float factor, OnlineSoftmax& softmax,
                                              float (&out)[head_size / 8][4]) {
  using Traits = HopperPrefillTraits<head_size>;
  // Of this lane, one of four floats for each eight columns.
  const auto output = [&](int n) {
    return outputs +
           (n * kWarpgroupThreads + (tile_row / 16 * kWarpSize + lane)) * static_cast<uint32_t>(sizeof(uint4));
  };
  const auto state = [&](int half) {
    return memory.narrow_states() + (tile_row + half * 8 + lane / 4) * static_cast<uint32_t>(sizeof(float2));
  };
  sync_consumers<Traits::kConsumers>();  // all are done with the queries
#pragma unroll 1
  for (int from = 1; from < Traits::kConsumers; ++from) {
    if (consumer == from) {
#pragma unroll
      for (int n = 0; n < head_size / 8; ++n) {
        ptx::store_shared(output(n), uint4{__float_as_uint(out[n][0]), __float_as_uint(out[n][1]),
                                           __float_as_uint(out[n][2]), __float_as_uint(out[n][3])});
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (lane % 4 == 0) ptx::store_shared(state(half), float2{softmax.maximum[half], softmax.sum[half]});
      }
    }
    sync_consumers<Traits::kConsumers>();
    if (consumer == 0) {
      float own[2], other[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float2 there;
        ptx::load_shared(state(half), there);
        const float highest = fmaxf(softmax.maximum[half], there.x);
        const float reference = highest == kMinusInfinity ? 0.0f : highest * factor;
        own[half] = ptx::exp2_fast(softmax.maximum[half] * factor - reference);
        other[half] = ptx::exp2_fast(there.x * factor - reference);
        softmax.maximum[half] = highest;
        softmax.sum[half] = softmax.sum[half] * own[half] + there.y * other[half];
      }
#pragma unroll
      for (int n = 0; n < head_size / 8; ++n) {
        uint4 there;
        ptx::load_shared(output(n), there);
        out[n][0] = out[n][0] * own[0] + __uint_as_float(there.x) * other[0];
        out[n][1] = out[n][1] * own[0] + __uint_as_float(there.y) * other[0];
        out[n][2] = out[n][2] * own[1] + __uint_as_float(there.z) * other[1];
        out[n][3] = out[n][3] * own[1] + __uint_as_float(there.w) * other[1];
      }
    }
    if (from + 1 < Traits::kConsumers) sync_consumers<Traits::kConsumers>();  // the place is free again
  }
}

// The products of one step are on their way while the softmax of the step before is computed:
//
//     tensor cores | S0        S1   O0        S2   O1             O2
//     softmax      |      P0             P1             P2
//
// S1 needs nothing of P0, so it is issued first; O0 += P0 V0 follows it, and P1 is computed when S1 is there. Scores
// and weights are then in registers at once.
template <class Element, class Kv, int head_size>
__device__ void consume(const HopperPrefillLaunch& launch, const PrefillMemory<head_size>& memory, int warp_row,
                        int lane) {
  using Traits = HopperPrefillTraits<head_size>;
  constexpr int kKeys = Traits::kKeys;
  const PrefillLaunch& common = launch.common;
  const auto barriers = memory.barriers();
  const int consumer = warp_row / kWarpgroupRows;
  const Turns<Traits::kConsumers, Traits::kInTurns> turns{consumer};
  turns.begin();
  PipelineStep<Traits::kStages> step;  // of the keys; the values follow one tile behind
  PipelineStep<Traits::kQueryStages> query_step;
  for (;; query_step.advance()) {
    ptx::mbarrier_wait(barriers.queries_full(query_step.stage()), query_step.parity());
    const ItemView view = ItemView::load(memory.item(query_step.stage()));
    if (view.is_none()) break;
    const auto queries = memory.queries(query_step.stage());
    const bool is_narrow = Traits::kNarrowTiles && view.is_narrow;
    const int tile_row = is_narrow ? warp_row % kWarpgroupRows : warp_row;

    OnlineSoftmax softmax;
    float out[head_size / 8][4] = {};
    float scores[kKeys / 8][4];
    uint32_t weights[kKeys / 16][4];
    const int window = common.op.window;
    int positions[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      positions[half] = row_position(common, view.position_of_token_0, view.first_row + tile_row + half * 8 + lane / 4,
                                     view.num_rows);
    }
    const auto wait_for_keys = [&] { ptx::mbarrier_wait(barriers.keys_full(step.stage()), step.parity()); };
    const auto issue_scores = [&](int first_row) {
      const auto keys = memory.keys(step.stage());
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
    // Read anew for each tile, for registers are short.
    const auto score_scale = [&] {
      if constexpr (kHasScales<Kv>) {
        float key_scale;
        ptx::load_shared(memory.item(query_step.stage()) + ItemView::kKeyScaleAt, key_scale);
        return common.scale.of_keys(key_scale);
      } else {
        return common.scale;
      }
    };
    // Scores become weights, in place.
    const auto weigh = [&](int key, float (&correction)[2]) {
      const ScoreScale scale = score_scale();
      scale.cap(scores);
      // The upper row sees no further than the lower one, and the lower one no earlier keys than the upper one.
      if (key + kKeys > positions[0] + 1 || (window > 0 && key < positions[1] - window + 1)) {
#pragma unroll
        for (int half = 0; half < 2; ++half) mask_half(scores, half, common, positions[half], key, lane);
      }
      softmax.weigh(scores, scale.factor, correction);
    };
    const auto pack = [&] {
#pragma unroll
      for (int k = 0; k < kKeys / 16; ++k) pack_weights<Element>(scores[2 * k], scores[2 * k + 1], weights[k]);
    };

    float correction[2];
    if (is_narrow) {
      // Tiles of keys in turn: those of the other consumers are let go as soon as they are there.
      int others = consumer;  // tiles to let go before the next of its own
#pragma unroll 1
      for (int key = view.first_key; key < view.last_key; key += kKeys) {
        wait_for_keys();
        if (others > 0) {
          release_keys();
          ptx::mbarrier_wait(barriers.values_full(step.stage()), step.parity());
          --others;
        } else {
          issue_scores(0);
          ptx::wait_for_products<0>();
          release_keys();
          weigh(key, correction);
          OnlineSoftmax::rescale(out, correction);
          pack();
          issue_out(step);
          ptx::wait_for_products<0>();
          others = Traits::kConsumers - 1;
        }
        release_values(step);
        step.advance();
      }
    } else {
      wait_for_keys();
      turns.take();
      issue_scores(warp_row / kWarpgroupRows * kWarpgroupRows);
      turns.pass();
      ptx::wait_for_products<0>();
      release_keys();
      weigh(view.first_key, correction);  // nothing has been accumulated that it would correct
      pack();
      step.advance();
      for (int key = view.first_key + kKeys; key < view.last_key; key += kKeys) {
        wait_for_keys();
        turns.take();
        issue_scores(warp_row / kWarpgroupRows * kWarpgroupRows);
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
    }

    softmax.finish();
    // Worked out and looked up once more: while products run, registers are better used.
    const int same_lane = ptx::anew(lane), same_row = ptx::anew(warp_row);
    const ItemView same_view = ItemView::load(memory.item(query_step.stage()));
    const bool was_narrow = Traits::kNarrowTiles && same_view.is_narrow;
    if (was_narrow) {
      gather_narrow(memory, queries.base, consumer, same_row % kWarpgroupRows, same_lane, score_scale().factor, softmax,
                    out);
    }
    sync_warpgroup(consumer);  // all are done with the queries, whose place the results take
    if (!was_narrow || consumer == 0) {
      store_rows<Element, Kv>(common, queries, same_view, score_scale().factor, same_row, same_lane, softmax, out);
    }
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(barriers.queries_empty(query_step.stage()));
  }
}

}  // namespace cudaprefill
