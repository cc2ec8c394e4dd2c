// A tile in shared memory: rows of one head, as many 16-bit elements each as the head size, swizzled.
//
// ldmatrix reads 16 bytes of each of eight neighbouring rows at once, and the 32 banks hold eight times 16 bytes. Were
// the rows simply stacked, those eight would share banks whenever the row length is a multiple of 128 bytes. So the
// 16-byte chunks of a row are permuted by an exclusive or with bits of the row number. Head size 64, eight chunks a
// row:
//
//     row 0 | 0 1 2 3 4 5 6 7        chunk c of row r lies at place c ^ (r % 8), and a column of
//     row 1 | 1 0 3 2 5 4 7 6        eight rows (here chunk 0) meets every bank group once
//     row 2 | 2 3 0 1 6 7 4 5
//     row 3 | 3 2 1 0 7 6 5 4 ...
//
// Where the row is not a multiple of 128 bytes (head sizes 80 and 96), its length already spreads some of the rows, and
// fewer bits are exchanged, slower.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace cudaprefill {

constexpr int kChunkBytes = 16;
constexpr int kChunkElements = 8;
constexpr int kBankGroups = 8;  // 32 banks of 4 bytes, in chunks

// The largest power of two that divides n, at most kBankGroups.
__host__ __device__ constexpr int swizzle_span(int n) { return n % 8 == 0 ? 8 : n % 4 == 0 ? 4 : n % 2 == 0 ? 2 : 1; }

template <int head_size>
struct SharedTile {
  static constexpr int kChunks = head_size / kChunkElements;
  static constexpr int kRowBytes = head_size * 2;
  static constexpr int kSpan = swizzle_span(kChunks);

  uint32_t base;

  __host__ __device__ static constexpr uint32_t bytes(int rows) { return rows * kRowBytes; }

  __device__ __forceinline__ uint32_t address(int row, int chunk) const {
    const int place = chunk ^ (row / (kBankGroups / kSpan) % kSpan);
    return base + row * kRowBytes + place * kChunkBytes;
  }
};

// A tile of what the caches store: half as wide for Float8.
template <int head_size, class Kv>
using SharedKvTile = SharedTile<head_size* static_cast<int>(sizeof(Kv)) / 2>;

}  // namespace cudaprefill
