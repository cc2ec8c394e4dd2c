// How queries, keys and values lie in shared memory, so that wgmma reads them in place and tensor copies bring them
// from 16-row pages.
//
// wgmma wants bricks of 8 rows by 64 elements, 1 KiB each, swizzled by 128 bytes (csrc/cuda/matrix_descriptor.h), and
// one offset for all steps of a kind. The bricks of the same 8 rows lie side by side, row groups one after another:
//
//     head size 128              elements 0-63   64-127
//     page a, rows 0-7                0           1024       K, K-major: 8 keys to the next 8: + 2048 (stride)
//     page a, rows 8-15            2048           3072       V, MN-major: 64 elements to the next 64: + 1024 (leading)
//     page b, rows 0-7             4096           5120                    8 keys to the next 8: + 2048 (stride)
//     page b, rows 8-15            6144           7168
//
// A step from one row group to the next is 2048 bytes inside a page and between pages: a tile is uniform, whatever
// pages it is made of. A box of a tensor copy lands in the order of its dimensions, innermost first, so what brings a
// page of one head in this order is
//
//     dimension   64 elements | 8 rows          | head size / 64 | row groups      | page * heads + head
//     box         64          | 8               | head size / 64 | 2               | 1
//     strides     (elements)  | a slot          | 128 bytes      | 8 slots         | a head
//
// The box of 64 elements x 16 rows x 2 that suggests itself puts the bricks of one page at 0, 2048 (elements 64-127),
// and 1024 for rows 8-15: row groups then follow by 1024 inside a page and by 3072 into the next one, and no single
// stride describes the tile. tests/cpp/page_boxes_test.cc checks both.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "csrc/cuda/attention/tile.cuh"
#include "csrc/cuda/matrix_descriptor.h"
#include "csrc/cuda/tensor_map.h"
#include "csrc/ops/params.h"

namespace cudaprefill {

constexpr int kPageRows = 16;  // that one box brings: a block of the cache is one page or several
constexpr int kBrickRows = 8;
constexpr int kBrickElements = 64;
constexpr uint32_t kBrickBytes = 1024;
constexpr uint32_t kSharedAlignment = 1024;  // after which the swizzle repeats

template <int head_size>
struct OperandTile {
  static constexpr int kChunks = head_size / kChunkElements;
  static constexpr uint32_t kGroupBytes = head_size / kBrickElements * kBrickBytes;  // of 8 rows

  uint32_t base;

  __host__ __device__ static constexpr uint32_t bytes(int rows) { return rows / kBrickRows * kGroupBytes; }

  // Of eight elements, for ordinary stores and loads.
  __host__ __device__ __forceinline__ uint32_t address(int row, int chunk) const {
    const int chunks_of_brick = kBrickElements / kChunkElements;
    const int place = chunk % chunks_of_brick ^ row % kBrickRows;
    return base + row / kBrickRows * kGroupBytes + chunk / chunks_of_brick * kBrickBytes +
           row % kBrickRows * (kBrickElements * 2) + place * kChunkBytes;
  }

  // Rows [first_row, ...) as rows of a product, elements [16 step, 16 step + 16) as its inner dimension: Q and K.
  __host__ __device__ __forceinline__ uint64_t along_elements(int first_row, int step) const {
    const int steps_of_brick = kBrickElements / 16;
    const uint64_t first = matrix_descriptor(base + first_row / kBrickRows * kGroupBytes, 0, kGroupBytes);
    return advance_descriptor(first, step / steps_of_brick * kBrickBytes + step % steps_of_brick * 32);
  }

  // All elements as columns of a product, rows [16 step, 16 step + 16) as its inner dimension: V.
  __host__ __device__ __forceinline__ uint64_t along_rows(int step) const {
    return advance_descriptor(matrix_descriptor(base, kBrickBytes, kGroupBytes), step * 2 * kGroupBytes);
  }
};

// The tensor whose boxes are pages of one head.
struct PageBoxes {
  // Whether blocks follow one another by a whole number of heads, as they do where the cache is one tensor.
  static bool fits(const PagedCache& cache, int num_kv_heads) {
    constexpr int64_t kMostIndex = INT32_MAX;
    return cache.num_blocks > 0 && num_kv_heads > 0 && cache.head_stride > 0 &&
           cache.block_stride % cache.head_stride == 0 &&
           cache.num_blocks * (cache.block_stride / cache.head_stride) <= kMostIndex;
  }
  static int heads_of_block(const PagedCache& cache) {
    return static_cast<int>(cache.block_stride / cache.head_stride);
  }
  // Numbers of one byte come in pairs, as elements of two; a row of 64 bytes is half as wide as a brick, and is
  // swizzled by as much.
  static TensorShape shape(const PagedCache& cache, int num_kv_heads, int block_size, int head_size, int number_bytes) {
    const int row_elements = head_size * number_bytes / 2;
    const int brick_elements = row_elements < kBrickElements ? row_elements : kBrickElements;
    const auto elements = static_cast<uint64_t>(row_elements / brick_elements);
    const auto slot_bytes = static_cast<uint64_t>(cache.slot_stride) * number_bytes;
    TensorShape shape{};
    shape.data = cache.data;
    shape.rank = 5;
    const uint64_t heads = static_cast<uint64_t>(cache.num_blocks - 1) * heads_of_block(cache) + num_kv_heads;
    const auto brick = static_cast<uint32_t>(brick_elements);
    const uint64_t extent[] = {brick, kBrickRows, elements, static_cast<uint64_t>(block_size / kBrickRows), heads};
    const uint64_t strides[] = {slot_bytes, brick * 2, kBrickRows * slot_bytes,
                                static_cast<uint64_t>(cache.head_stride) * number_bytes};
    const uint32_t box[] = {brick, kBrickRows, static_cast<uint32_t>(elements), kPageRows / kBrickRows, 1};
    for (int i = 0; i < 5; ++i) {
      shape.extent[i] = extent[i];
      shape.box[i] = box[i];
    }
    for (int i = 0; i < 4; ++i) shape.stride_bytes[i] = strides[i];
    shape.swizzle = brick_elements == kBrickElements ? TensorSwizzle::k128Bytes : TensorSwizzle::k64Bytes;
    return shape;
  }
};

}  // namespace cudaprefill
