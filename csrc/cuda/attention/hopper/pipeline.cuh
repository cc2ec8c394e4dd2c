// The ring of stages through which keys and values reach the warpgroups, and the shared memory of the kernel.
//
// Every stage has two mbarriers. The producer waits until a stage is empty, fills it, and it is full; the consumers
// wait until it is full, multiply, and it is empty:
//
//     producer:  wait(empty, parity ^ 1)  copy ...         consumers:  wait(full, parity)  multiply  arrive(empty)
//
// Queries have stages of their own, an item each. Tiles are counted through all items of a thread block: tile n is in
// stage n % kStages, for the n / kStages-th time.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <ptx/mbarrier.cuh>

#include "csrc/cuda/attention/hopper/item_view.cuh"
#include "csrc/cuda/attention/hopper/prefill_traits.h"
#include "csrc/cuda/attention/tile.cuh"
#include "csrc/cuda/element.cuh"

namespace cudaprefill {

template <int stages>
struct PipelineStep {
  static_assert((stages & (stages - 1)) == 0);  // so that the count may wrap
  uint32_t tile = 0;

  __device__ __forceinline__ int stage() const { return tile % stages; }
  __device__ __forceinline__ uint32_t parity() const { return tile / stages % 2; }
  __device__ __forceinline__ void advance() { ++tile; }
  __device__ __forceinline__ PipelineStep before() const { return {tile - 1}; }
};

// Addresses of the mbarriers. Values whose tile is not wholly part of the context land first (`values_landed`), have
// their other rows zeroed, and only then are full.
template <int stages, int query_stages>
struct PipelineBarriers {
  static constexpr int kKinds = 5;
  static constexpr uint32_t kBytes = (kKinds * stages + 2 * query_stages) * ptx::kMbarrierBytes;

  uint32_t base;

  __device__ __forceinline__ uint32_t keys_full(int stage) const { return at(0, stage); }
  __device__ __forceinline__ uint32_t keys_empty(int stage) const { return at(1, stage); }
  __device__ __forceinline__ uint32_t values_full(int stage) const { return at(2, stage); }
  __device__ __forceinline__ uint32_t values_empty(int stage) const { return at(3, stage); }
  __device__ __forceinline__ uint32_t values_landed(int stage) const { return at(4, stage); }
  __device__ __forceinline__ uint32_t queries_full(int stage) const {
    return at(kKinds, 0) + 2 * stage * ptx::kMbarrierBytes;
  }
  __device__ __forceinline__ uint32_t queries_empty(int stage) const {
    return queries_full(stage) + ptx::kMbarrierBytes;
  }

  // By one thread.
  __device__ __forceinline__ void init(uint32_t producer_arrivals, uint32_t query_arrivals,
                                       uint32_t consumer_arrivals) const {
    for (int stage = 0; stage < stages; ++stage) {
      ptx::mbarrier_init(keys_full(stage), producer_arrivals);
      ptx::mbarrier_init(keys_empty(stage), consumer_arrivals);
      ptx::mbarrier_init(values_full(stage), producer_arrivals);
      ptx::mbarrier_init(values_empty(stage), consumer_arrivals);
      ptx::mbarrier_init(values_landed(stage), 1);
    }
    for (int stage = 0; stage < query_stages; ++stage) {
      ptx::mbarrier_init(queries_full(stage), query_arrivals);
      ptx::mbarrier_init(queries_empty(stage), consumer_arrivals);
    }
    ptx::fence_mbarrier_init();
  }

 private:
  __device__ __forceinline__ uint32_t at(int kind, int stage) const {
    return base + (kind * stages + stage) * ptx::kMbarrierBytes;
  }
};

// Where everything lies. The beginning is rounded up, for the runtime promises less than the swizzle needs.
template <int head_size>
struct PrefillMemory {
  using Traits = HopperPrefillTraits<head_size>;
  using Tile = OperandTile<head_size>;

  uint32_t base;

  __device__ __forceinline__ explicit PrefillMemory(uint32_t shared_base)
      : base((shared_base + kSharedAlignment - 1) / kSharedAlignment * kSharedAlignment) {}

  __device__ __forceinline__ Tile queries(int stage) const { return Tile{base + stage * Traits::kQueryBytes}; }
  __device__ __forceinline__ Tile keys(int stage) const {
    return Tile{base + Traits::kStagesAt + stage * Traits::kTileBytes};
  }
  __device__ __forceinline__ Tile values(int stage) const { return keys(Traits::kStages + stage); }
  using Barriers = PipelineBarriers<Traits::kStages, Traits::kQueryStages>;
  static_assert(Barriers::kBytes <= Traits::kItemsAt - Traits::kBarriersAt);
  __device__ __forceinline__ Barriers barriers() const { return {base + Traits::kBarriersAt}; }
  // Of the item whose queries are in the stage.
  __device__ __forceinline__ uint32_t item(int stage) const {
    return base + Traits::kItemsAt + stage * ItemView::kBytes;
  }
  // What is stored of a tile, before it is widened.
  using StoredTile = SharedKvTile<head_size, Float8>;
  __device__ __forceinline__ StoredTile stored_keys() const { return {base + Traits::kStoredAt}; }
  __device__ __forceinline__ StoredTile stored_values() const {
    return {base + Traits::kStoredAt + Traits::kStoredTileBytes};
  }
  __device__ __forceinline__ uint32_t narrow_states() const { return base + Traits::kNarrowStatesAt; }
};

}  // namespace cudaprefill
