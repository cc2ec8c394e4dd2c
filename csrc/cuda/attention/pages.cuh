// Gathers keys or values of one KV head from the paged cache into a tile, by cp.async.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <ptx/async_copy.cuh>
#include <ptx/memory.cuh>

#include "csrc/cuda/attention/tile.cuh"
#include "csrc/cuda/reduce.cuh"
#include "csrc/ops/params.h"

namespace cudaprefill {

// A request's logical blocks of one cache and head. All offsets are 64-bit: a pool overruns 32.
template <class Kv>
struct PagedRows {
  const Kv* data;  // of the head
  int64_t block_stride, slot_stride;
  const int32_t* block_table;
  int block_shift;  // block_size = 1 << block_shift

  __device__ PagedRows(const PagedCache& cache, int head, const int32_t* table, int shift)
      : data(static_cast<const Kv*>(cache.data) + head * cache.head_stride),
        block_stride(cache.block_stride),
        slot_stride(cache.slot_stride),
        block_table(table),
        block_shift(shift) {}

  // The row of a key, by way of the block table.
  __device__ __forceinline__ const Kv* row(int key) const {
    const int64_t block = ptx::load_global(block_table + (key >> block_shift));
    const int in_block = key & ((1 << block_shift) - 1);
    return data + block * block_stride + in_block * slot_stride;
  }
};

// One warp copies keys [key, key + rows) to tile rows [row, row + rows). The keys lie in one block: `rows` divides 16
// and `key` is a multiple of it. Keys outside [first, last) become zeros; neither they nor their table entries are
// read, for what lies there may be anything, and 0 * NaN is NaN.
template <int rows, class Tile, class Kv>
__device__ __forceinline__ void copy_rows_async(const Tile& tile, int row, const PagedRows<Kv>& from, int key,
                                                int first, int last, int lane) {
  constexpr int kChunks = Tile::kChunks, kPieces = rows * kChunks;
  constexpr int kNumbersOfChunk = kChunkBytes / sizeof(Kv);
  const bool any = key + rows > first && key < last;
  const Kv* source = any ? from.row(key) : from.data;
#pragma unroll
  for (int i = 0; i < (kPieces + kWarpSize - 1) / kWarpSize; ++i) {
    const int piece = i * kWarpSize + lane;
    if (kPieces % kWarpSize != 0 && piece >= kPieces) break;
    const int r = piece / kChunks, chunk = piece % kChunks;
    const bool valid = key + r >= first && key + r < last;
    ptx::copy_async_16(tile.address(row + r, chunk), source + r * from.slot_stride + chunk * kNumbersOfChunk, valid);
  }
}

}  // namespace cudaprefill
