// decode_attention for compute capability 9.0: one query a request, keys and values by tensor copies.
//
// Decoding is bound by memory, so the kernel is there to keep copies in flight. Every warp has its share of all keys
// (decode_line.cuh) and a ring of stages of its own, and feeds it by itself:
//
//     ring    | piece n  | piece n + 1 | piece n + 2 |         a piece: 16 keys and their values, one page of a head
//     each warp      multiply ^ then the copy of piece n + 3 into the same stage
//
// It looks ahead over the ends of rows and requests, so the copies never pause; no warp waits for another one, and
// there is no barrier of the block but the one before the loop. The 16 rows of mma.sync are the query heads of a KV
// head.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <ptx/mbarrier.cuh>
#include <ptx/memory.cuh>
#include <ptx/tensor_copy.cuh>

#include "csrc/cuda/attention/hopper/decode_launch.h"
#include "csrc/cuda/attention/hopper/decode_line.cuh"
#include "csrc/cuda/attention/kv_fragments.cuh"
#include "csrc/cuda/attention/products.cuh"
#include "csrc/cuda/stream_order.cuh"

namespace cudaprefill {

// The stages of one warp and the mbarrier of each.
template <int head_size, class Kv>
struct DecodeRing {
  using Traits = HopperDecodeTraits<head_size, Kv>;
  using Tile = typename Traits::Tile;

  uint32_t stages, barriers;

  __device__ __forceinline__ Tile keys(int stage) const { return Tile{stages + stage * Traits::kStageBytes}; }
  __device__ __forceinline__ Tile values(int stage) const {
    return Tile{stages + stage * Traits::kStageBytes + Traits::kPieceBytes};
  }
  __device__ __forceinline__ uint32_t full(int stage) const { return barriers + stage * ptx::kMbarrierBytes; }
};

// Issues the copies of a warp's pieces one after another.
template <int head_size, class Kv>
class PieceCopies {
 public:
  using Traits = HopperDecodeTraits<head_size, Kv>;

  __device__ __forceinline__ PieceCopies(const HopperDecodeLaunch& launch, const DecodeLine& line,
                                         const DecodeRing<head_size, Kv>& ring, int begin, int end, int lane)
      : launch_(launch), line_(line), ring_(ring), at_(begin), end_(end), lane_(lane) {}

  // The next piece, if there is one, into a stage that no lane reads any more.
  __device__ __forceinline__ void issue(int stage) {
    if (at_ >= end_) return;
    if (piece_ == piece_after_) {
      const DecodeSegment segment = line_.segment(launch_, at_, end_);
      piece_ = segment.piece;
      piece_after_ = segment.piece_after;
      kv_head_ = segment.kv_head;
      table_ = launch_.op.block_table + segment.request * launch_.op.block_table_stride;
      looked_up_ = 0;
    }
    if (looked_up_ == 0) {
      // A lane each: what a copy needs is here before its turn.
      if (piece_ + lane_ < piece_after_) {
        block_ = ptx::load_global(table_ + ((piece_ + lane_) * kPageRows >> launch_.block_shift));
      }
      looked_up_ = kWarpSize;
    }
    const int block = __shfl_sync(kFullWarp, block_, kWarpSize - looked_up_);
    if (lane_ == 0) {
      const int in_block = (piece_ * kPageRows & ((1 << launch_.block_shift) - 1)) / kBrickRows;
      ptx::mbarrier_arrive_expecting(ring_.full(stage), Traits::kStageBytes);
      const int of_keys[5] = {0, 0, 0, in_block, block * launch_.heads_of_keys + kv_head_};
      ptx::copy_tensor_async(ring_.keys(stage).base, launch_.keys, of_keys, ring_.full(stage));
      const int of_values[5] = {0, 0, 0, in_block, block * launch_.heads_of_values + kv_head_};
      ptx::copy_tensor_async(ring_.values(stage).base, launch_.values, of_values, ring_.full(stage));
    }
    --looked_up_;
    ++piece_;
    ++at_;
  }

 private:
  const HopperDecodeLaunch& launch_;
  const DecodeLine& line_;
  const DecodeRing<head_size, Kv>& ring_;
  int at_, end_;  // of the line
  int lane_;
  int piece_ = 0, piece_after_ = 0, kv_head_ = 0;  // of the segment
  const int32_t* table_ = nullptr;                 // of the request
  int block_ = 0;                                  // of one of the next pieces, by lane
  int looked_up_ = 0;                              // pieces whose blocks the lanes still have
};

// The A fragments of a row, in the order of keys of type Kv (kv_fragments.cuh), straight from global memory: it is read
// once for hundreds of pieces.
template <class Element, int head_size, class Kv>
__device__ __forceinline__ void load_row_queries(const HopperDecodeLaunch& launch, const DecodeSegment& segment,
                                                 int lane, uint32_t (&query)[head_size / 16][4]) {
  const HeadRows& q = launch.op.q;
  constexpr int kNeighbours = kHasScales<Kv> ? 4 : 2;  // of a lane
  const Element* rows = static_cast<const Element*>(q.data) + segment.request * q.token_stride +
                        segment.first_head(launch) * q.head_stride + lane % 4 * kNeighbours;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = lane / 4 + 8 * half;
    const bool exists = row < segment.num_heads(launch);
#pragma unroll
    for (int k = 0; k < head_size / 16; ++k) {
#pragma unroll
      for (int right = 0; right < 2; ++right) {
        const Element* at = rows + row * q.head_stride + k * 16 + right * (kHasScales<Kv> ? 2 : 8);
        query[k][half + 2 * right] = exists ? ptx::load_global(reinterpret_cast<const uint32_t*>(at)) : 0;
      }
    }
  }
}

// The result of a segment: its row of the output, or a part of it.
template <class Element, int head_size, class Kv>
__device__ __forceinline__ void store_segment(const HopperDecodeLaunch& launch, const DecodeSegment& segment, int part,
                                              int lane, float factor, OnlineSoftmax& softmax,
                                              const float (&out)[head_size / 8][4]) {
  const float value_scale = scale_of<Kv>(launch.op.v_cache, segment.kv_head);
  const HeadRows& rows = launch.op.out;
  softmax.finish();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = lane / 4 + 8 * half;
    if (row >= segment.num_heads(launch)) continue;
    const float sum = softmax.sum[half];
    const float scale = sum > 0 ? value_scale / sum : 0.0f;
    Element* to = static_cast<Element*>(rows.data) + segment.request * rows.token_stride +
                  (segment.first_head(launch) + row) * rows.head_stride;
    float* partial = launch.partials.out_row(part, row);
#pragma unroll
    for (int n = 0; n < head_size / 8; ++n) {
      const int element = OutColumns<Kv>::element(n, lane);
      float2 pair = OutColumns<Kv>::pair(out, n, half);
      pair.x *= scale;
      pair.y *= scale;
      if (segment.is_whole_row) {
        ptx::store_global(reinterpret_cast<uint32_t*>(to + element), ptx::pack<Element>(pair.x, pair.y));
      } else {
        ptx::store_global(reinterpret_cast<float2*>(partial + element), pair);
      }
    }
    if (!segment.is_whole_row && lane % 4 == 0) {
      ptx::store_global(launch.partials.log_sum_of(part, row), log2_of_sum(softmax.maximum[half], sum, factor));
    }
  }
}

template <class Element, int head_size, class Kv>
__global__ void __launch_bounds__(HopperDecodeTraits<head_size, Kv>::kThreads, 1)
    decode_sm90_kernel(const __grid_constant__ HopperDecodeLaunch launch) {
  using Traits = HopperDecodeTraits<head_size, Kv>;
  constexpr int kSteps = head_size / 16;
  const int lane = threadIdx.x % kWarpSize;
  const int warp = __shfl_sync(kFullWarp, static_cast<int>(threadIdx.x / kWarpSize), 0);
  const uint32_t shared = (ptx::shared_base() + kSharedAlignment - 1) / kSharedAlignment * kSharedAlignment;
  const DecodeRing<head_size, Kv> ring{shared + warp * Traits::kStages * Traits::kStageBytes,
                                       shared + Traits::kBarriersAt + warp * Traits::kStages * ptx::kMbarrierBytes};
  if (lane == 0) {
    ptx::prefetch_tensor_map(launch.keys);
    ptx::prefetch_tensor_map(launch.values);
    for (int stage = 0; stage < Traits::kStages; ++stage) ptx::mbarrier_init(ring.full(stage), 1);
    ptx::fence_mbarrier_init();
  }
  enter_stream();
  const DecodeLine line = lay_out_line<Traits::kThreads>(launch, shared + Traits::kLineAt, shared + Traits::kScratchAt);

  // Neighbouring shares are on different multiprocessors, so that a short line is spread over all of them.
  const int worker = warp * gridDim.x + blockIdx.x;
  const int share = decode_share(line.length, launch.workers);
  const auto begin = static_cast<int>(min(int64_t{worker} * share, int64_t{line.length}));
  const int end = min(share, line.length - begin) + begin;
  PieceCopies<head_size, Kv> copies(launch, line, ring, begin, end, lane);
#pragma unroll 1
  for (int stage = 0; stage < Traits::kStages; ++stage) copies.issue(stage);

  int stage = 0;
  uint32_t parity = 0;
#pragma unroll 1
  for (int at = begin; at < end;) {
    const DecodeSegment segment = line.segment(launch, at, end);
    uint32_t query[head_size / 16][4];
    load_row_queries<Element, head_size, Kv>(launch, segment, lane, query);
    const ScoreScale score_scale = launch.scale.of_keys(scale_of<Kv>(launch.op.k_cache, segment.kv_head));
    OnlineSoftmax softmax;
    float out[head_size / 8][4] = {};
#pragma unroll 1
    for (int piece = segment.piece; piece < segment.piece_after; ++piece) {
      ptx::mbarrier_wait(ring.full(stage), parity);
      float scores[2][4] = {};
#pragma unroll
      for (int k = 0; k < kSteps; k += kStepsOfLoad<Kv>) {
        uint32_t fragments[kStepsOfLoad<Kv>][4];
        load_key_fragments<Element, Kv>(ring.keys(stage), 0, k, lane, fragments);
#pragma unroll
        for (int s = 0; s < kStepsOfLoad<Kv>; ++s) {
          ptx::multiply_accumulate<Element>(scores[0], query[k + s], fragments[s][0], fragments[s][1]);
          ptx::multiply_accumulate<Element>(scores[1], query[k + s], fragments[s][2], fragments[s][3]);
        }
      }
      score_scale.cap(scores);

      // What lies outside may be NaN, and 0 * NaN is NaN: values are taken away with their scores.
      uint32_t value_bits[2] = {~0u, ~0u};  // of two keys each, as in a B fragment
      const int key = piece * kPageRows;
      if (key < segment.keys.first_key || key + kPageRows > segment.keys.last_key) {
#pragma unroll
        for (int n = 0; n < 2; ++n) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const int column = key + n * 8 + lane % 4 * 2 + i;
            if (column >= segment.keys.first_key && column < segment.keys.last_key) continue;
            scores[n][i] = scores[n][2 + i] = kMinusInfinity;
            value_bits[n] &= i == 0 ? 0xffff0000u : 0x0000ffffu;
          }
        }
      }
      softmax.update(scores, out, score_scale.factor);
      uint32_t weights[4];
      pack_weights<Element>(scores[0], scores[1], weights);
#pragma unroll
      for (int n = 0; n < kSteps; n += kStepsOfLoad<Kv>) {
        uint32_t fragments[kStepsOfLoad<Kv>][4];
        load_value_fragments<Element, Kv>(ring.values(stage), 0, n, lane, fragments);
#pragma unroll
        for (int s = 0; s < kStepsOfLoad<Kv>; ++s) {
#pragma unroll
          for (int i = 0; i < 4; ++i) fragments[s][i] &= value_bits[i % 2];
          ptx::multiply_accumulate<Element>(out[2 * (n + s)], weights, fragments[s][0], fragments[s][1]);
          ptx::multiply_accumulate<Element>(out[2 * (n + s) + 1], weights, fragments[s][2], fragments[s][3]);
        }
      }
      __syncwarp();  // all lanes are done with the stage
      copies.issue(stage);
      if (++stage == Traits::kStages) {
        stage = 0;
        parity ^= 1;
      }
    }
    store_segment<Element, head_size, Kv>(launch, segment, decode_part(worker, at == begin), lane, score_scale.factor,
                                          softmax, out);
    at += segment.piece_after - segment.piece;
  }
}

}  // namespace cudaprefill
