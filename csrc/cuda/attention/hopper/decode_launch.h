// The Hopper decode of one number format, head size and type of the caches, as the dispatch in attention.cu sees it.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "csrc/cuda/attention/decode.cuh"
#include "csrc/cuda/attention/hopper/operand_tile.cuh"
#include "csrc/cuda/attention/partial.cuh"
#include "csrc/cuda/attention/softmax.cuh"
#include "csrc/cuda/tensor_map.h"
#include "csrc/ops/params.h"

namespace cudaprefill {

struct HopperDecodeLaunch {
  TensorMap keys, values;  // of PageBoxes
  DecodeAttentionParams op;
  ScoreScale scale;
  int block_shift;
  int group;                           // query heads a KV head
  int row_tiles;                       // rows that share a KV head: ceil(group / kDecodeRows)
  int heads_of_keys, heads_of_values;  // from a block to the next in the cache, in heads
  int workers;                         // warps of the grid
  int32_t* pieces_before;              // [num_requests + 1]: what the grid tells the merge of the line
  Partials partials;                   // two for each worker
};

constexpr int kHopperDecodeMostRequests = 4096;  // whose lengths fit beside the stages

// The shape of a thread block, by head size: one stays on each multiprocessor, and its warps work each for itself.
template <int head_size, class Kv>
struct HopperDecodeTraits {
  static constexpr int kWarps = head_size == 256 ? 4 : 8;
  static constexpr int kThreads = kWarps * kWarpSize;
  // Pieces of keys and values in the ring of a warp: 192 KiB in all, or 96 for small numbers of small heads.
  static constexpr int kStages = head_size == 64 || sizeof(Kv) == 1 ? 6 : 3;
  // As the boxes land: rows of 64 bytes are too narrow for bricks.
  static constexpr int kRowElements = head_size * static_cast<int>(sizeof(Kv)) / 2;
  using Tile = std::conditional_t<(kRowElements < kBrickElements), SharedTile<kRowElements>, OperandTile<kRowElements>>;
  static constexpr uint32_t kPieceBytes = Tile::bytes(kPageRows);
  static constexpr uint32_t kStageBytes = 2 * kPieceBytes;

  static constexpr uint32_t kBarriersAt = kWarps * kStages * kStageBytes;
  static constexpr uint32_t kScratchAt = kBarriersAt + kWarps * kStages * sizeof(uint64_t);
  static constexpr uint32_t kLineAt = kScratchAt + kWarps * sizeof(uint32_t);

  // The stages begin at a multiple of what the swizzle needs, which the runtime does not promise.
  static constexpr uint32_t shared_bytes(int num_requests) {
    return kSharedAlignment + kLineAt + (num_requests + 1) * sizeof(uint32_t);
  }
  static constexpr uint32_t kSharedBytes =
      kSharedAlignment + kLineAt + (kHopperDecodeMostRequests + 1) * sizeof(uint32_t);
  static_assert(kSharedBytes <= 227 * 1024);
};

constexpr int kHopperMergeThreads = 256;

template <class Element, int head_size, class Kv>
void run_decode_sm90(const HopperDecodeLaunch& launch, int num_blocks, cudaStream_t stream);

// The parts that it leaves, and requests without keys.
template <class Element, int head_size>
void run_merge_decode_sm90(const HopperDecodeLaunch& launch, cudaStream_t stream);

}  // namespace cudaprefill
