// The planning kernel. Longest items first: they are sorted into buckets of equal cost, as many as there are threads.
#include <cuda_runtime.h>

#include <cstdint>
#include <launch.cuh>
#include <ptx/memory.cuh>

#include "csrc/cuda/attention/prefill_plan.h"
#include "csrc/cuda/reduce.cuh"
#include "csrc/cuda/stream_order.cuh"

namespace cudaprefill {
namespace {

constexpr int kThreads = 256;
constexpr int kMinKeyTilesPerPart = 4;  // below that the partial results cost more than they save

// The keys that the rows [first_row, first_row + rows) of a request see, from a multiple of `keys` on.
struct KeyRange {
  int first, last;

  __device__ static KeyRange of(const PrefillPlanParams& plan, int query_len, int context_len, int first_row) {
    const int last_row = min(first_row + plan.rows, query_len * plan.group) - 1;
    const int first_position = context_len - query_len + first_row / plan.group;
    const int last_position = context_len - query_len + last_row / plan.group;
    const int first_key = plan.window > 0 ? max(0, first_position - plan.window + 1) : 0;
    return {first_key / plan.keys * plan.keys, last_position + 1};
  }
};

// Tiles of keys are the unit of an item's cost: of a narrow one, as many keys as a thread block takes at once.
struct TileClass {
  bool narrow;
  int keys;

  __device__ static TileClass of(const PrefillPlanParams& plan, int num_rows) {
    const bool narrow = num_rows <= plan.narrow_rows;
    return {narrow, narrow ? plan.narrow_keys : plan.keys};
  }
};

// Calls visit(request, first_row, class, range, number of key tiles) for every tile, shared out over the threads: a
// warp takes a request, its lanes the tiles of it.
template <class Visit>
__device__ void for_each_tile(const PrefillPlanParams& plan, Visit visit) {
  constexpr int kWarps = kThreads / kWarpSize;
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  for (int request = warp; request < plan.num_requests; request += kWarps) {
    const int query_len =
        ptx::load_global(plan.cu_seqlens_q + request + 1) - ptx::load_global(plan.cu_seqlens_q + request);
    const int context_len = ptx::load_global(plan.context_lens + request);
    const TileClass tile_class = TileClass::of(plan, query_len * plan.group);
    for (int row = lane * plan.rows; row < query_len * plan.group; row += kWarpSize * plan.rows) {
      const KeyRange range = KeyRange::of(plan, query_len, context_len, row);
      visit(request, row, tile_class, range, (range.last - range.first + tile_class.keys - 1) / tile_class.keys);
    }
  }
}

__global__ void __launch_bounds__(kThreads) plan_prefill_kernel(const __grid_constant__ PrefillPlanParams plan) {
  const uint32_t shared = ptx::shared_base();
  const uint32_t total = shared, split_tiles = shared + 4, parts = shared + 8, num_items_at = shared + 12;
  const uint32_t buckets = shared + 16;  // one word each
  const auto bucket = [&](int i) { return buckets + 4 * i; };

  if (threadIdx.x < 4) ptx::store_shared(shared + 4 * threadIdx.x, 0u);
  ptx::store_shared(bucket(threadIdx.x), 0u);
  __syncthreads();

  enter_stream();
  // --- the even share of a thread block, in tiles of keys: no item is longer ---
  uint32_t own_total = 0;
  for_each_tile(plan, [&](int, int, TileClass, KeyRange, int tiles) { own_total += tiles; });
  ptx::atomic_add_shared(total, own_total);
  __syncthreads();
  uint32_t sum;
  ptx::load_shared(total, sum);
  const auto work = static_cast<uint32_t>(static_cast<uint64_t>(sum) * plan.num_kv_heads / plan.num_blocks) + 1;
  const int share = max(static_cast<int>(work), kMinKeyTilesPerPart);

  // Parts are of equal length but for the last.
  const auto parts_of = [&](int tiles) { return (tiles + share - 1) / share; };
  const auto part_length = [&](int tiles) { return (tiles + parts_of(tiles) - 1) / parts_of(tiles); };
  const auto bucket_of = [&](int length) {  // the longest in bucket 0
    return (share - min(length, share)) * (kThreads - 1) / share;
  };

  // --- count the buckets ---
  for_each_tile(plan, [&](int, int, TileClass, KeyRange, int tiles) {
    const int length = part_length(tiles);
    for (int done = 0; done < tiles; done += length) {
      ptx::atomic_add_shared(bucket(bucket_of(min(length, tiles - done))), 1);
    }
  });
  __syncthreads();

  // --- where each bucket begins: an exclusive prefix sum, by warps and then over the warps ---
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;
  const uint32_t warp_sums = bucket(kThreads);
  uint32_t count, before;
  ptx::load_shared(bucket(threadIdx.x), count);
  uint32_t inclusive = count;
  for (int distance = 1; distance < kWarpSize; distance *= 2) {
    const uint32_t lower = __shfl_up_sync(kFullWarp, inclusive, distance);
    if (lane >= distance) inclusive += lower;
  }
  if (lane == kWarpSize - 1) ptx::store_shared(warp_sums + 4 * warp, inclusive);
  __syncthreads();
  before = inclusive - count;
  for (int w = 0; w < warp; ++w) {
    uint32_t of_warp;
    ptx::load_shared(warp_sums + 4 * w, of_warp);
    before += of_warp;
  }
  ptx::store_shared(bucket(threadIdx.x), before);
  if (threadIdx.x == kThreads - 1) ptx::store_shared(num_items_at, before + count);
  __syncthreads();

  // --- write the items ---
  for_each_tile(plan, [&](int request, int row, TileClass tile_class, KeyRange range, int tiles) {
    const int length = part_length(tiles);
    const int num_parts = (tiles + length - 1) / length;
    int part = PrefillItem::kWhole;
    if (num_parts > 1) {
      part = ptx::atomic_add_shared(parts, num_parts);
      const uint32_t at = ptx::atomic_add_shared(split_tiles, 1);
      ptx::store_global(plan.split_tiles + at, SplitTile{request, row, part, num_parts});
    }
    for (int i = 0; i < num_parts; ++i) {
      const int first_key = range.first + i * length * tile_class.keys;
      const int last_key = min(first_key + length * tile_class.keys, range.last);
      const uint32_t at = ptx::atomic_add_shared(bucket(bucket_of(min(length, tiles - i * length))), 1);
      const int own_part = num_parts > 1 ? part + i : PrefillItem::kWhole;
      PrefillItem* item = plan.items + at;
      ptx::store_global(reinterpret_cast<int4*>(item), int4{request, row, first_key, last_key});
      ptx::store_global(reinterpret_cast<int4*>(&item->part), int4{own_part, tile_class.narrow, 0, 0});
    }
  });
  __syncthreads();
  if (threadIdx.x == 0) {
    uint32_t num_items, num_split_tiles;
    ptx::load_shared(num_items_at, num_items);
    ptx::load_shared(split_tiles, num_split_tiles);
    ptx::store_global(&plan.counts->num_items, static_cast<int32_t>(num_items));
    ptx::store_global(&plan.counts->num_split_tiles, static_cast<int32_t>(num_split_tiles));
  }
}

}  // namespace

void plan_prefill(const PrefillPlanParams& params, cudaStream_t stream) {
  constexpr int kWordsBesideBuckets = 4 + kThreads / kWarpSize;
  const LaunchShape shape{dim3{1, 1, 1}, kThreads, (kThreads + kWordsBesideBuckets) * sizeof(uint32_t)};
  launch("plan_prefill", plan_prefill_kernel, shape, params, stream);
}

}  // namespace cudaprefill
