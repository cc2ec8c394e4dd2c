// The shape of a thread block of the Hopper prefill, by head size.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "csrc/cuda/attention/hopper/operand_tile.cuh"

namespace cudaprefill {

constexpr int kWarpgroupThreads = 128;
constexpr int kWarpgroupRows = 64;
constexpr int kWarpsOfGroup = 4;

constexpr bool hopper_has_head_size(int head_size) { return head_size == 64 || head_size == 128 || head_size == 256; }

// Whether keys and values of Float8 are widened on their way: at head size 256 there is no memory left for it.
constexpr bool hopper_widens(int head_size) { return head_size <= 128; }

// Whether there are narrow tiles (prefill_plan.h): at head size 256 a second way through the consumer spills registers.
constexpr bool hopper_has_narrow_tiles(int head_size) { return head_size <= 128; }

template <int head_size>
struct HopperPrefillTraits {
  static constexpr int kConsumers = head_size == 64 ? 3 : 2;  // warpgroups, 64 rows each
  static constexpr int kRows = kConsumers * kWarpgroupRows;
  // A whole number of pages; as many as there are registers for the scores and the weights of two tiles at once.
  static constexpr int kKeys = head_size == 64 ? 112 : head_size == 128 ? 128 : 80;
  static constexpr int kPages = kKeys / kPageRows;
  static constexpr int kStages = 2;                              // of keys, and of values
  static constexpr int kQueryStages = head_size == 256 ? 1 : 2;  // as memory has room
  static constexpr bool kInTurns = head_size <= 128;             // consumers share the tensor cores by turns
  static constexpr bool kNarrowTiles = hopper_has_narrow_tiles(head_size);
  static constexpr int kThreads = (1 + kConsumers) * kWarpgroupThreads;

  // The compiler gives all threads the same number; these two sum up to no more than that.
  static constexpr int kProducerRegisters = kConsumers == 3 ? 32 : 40;
  static constexpr int kConsumerRegisters = kConsumers == 3 ? 160 : 232;

  static constexpr uint32_t kTileBytes = OperandTile<head_size>::bytes(kKeys);
  static constexpr uint32_t kQueryBytes = OperandTile<head_size>::bytes(kRows);
  static constexpr uint32_t kStagesAt = kQueryStages * kQueryBytes;
  static constexpr uint32_t kBarriersAt = kStagesAt + 2 * kStages * kTileBytes;
  static constexpr uint32_t kItemsAt = kBarriersAt + 128;  // what the consumers must know of each stage of queries
  // Where consumers leave maxima and sums of a narrow tile, a pair a row; their outputs take the place of its queries.
  static constexpr uint32_t kNarrowStatesAt = kItemsAt + 128;
  static_assert(kQueryBytes >= kWarpgroupRows * head_size * sizeof(float));
  static constexpr uint32_t kSharedBytes = kSharedAlignment + kNarrowStatesAt + kWarpgroupRows * 2 * sizeof(float);
  static_assert(kSharedBytes <= 227 * 1024);

  // A tile of keys and one of values as Float8, after all else, where these are widened.
  static constexpr uint32_t kStoredAt = kSharedBytes - kSharedAlignment;
  static constexpr uint32_t kStoredTileBytes = kKeys * head_size;
  static constexpr uint32_t kWideningSharedBytes = kSharedBytes + 2 * kStoredTileBytes;
  static_assert(!hopper_widens(head_size) || kWideningSharedBytes <= 227 * 1024);
};

}  // namespace cudaprefill
