// The products of prefill attention in float32, whatever the cache holds.
#pragma once

#include <type_traits>

#include "csrc/cpu/attention_keys.h"
#include "csrc/cpu/attention_scratch.h"
#include "csrc/cpu/prefill_attention_tile.h"

namespace cudaprefill::cpu::CUDAPREFILL_ISA {

// K and V are read where they lie in their blocks, or from float32 copies of a tile that all rows of an item share.
template <class Kv>
class FloatProducts {
 public:
  using Tile = KeyTile<Kv, kTileKeys, kBlock>;

  static constexpr int kKeysOfWeight = 1;

  static int64_t scratch_size(int64_t head_size) { return 2 * ScratchParts::rounded(copies_size(head_size)); }

  FloatProducts(ScratchParts* parts, int64_t head_size) : head_size_(head_size) {
    if constexpr (kCopies) {
      key_copies_ = parts->take(copies_size(head_size));
      value_copies_ = parts->take(copies_size(head_size));
    }
  }

  // q[d][row] of a panel, for `dims` dimensions from d on in the vectors of `square`.
  static void store_queries(float* panel, int64_t panel_rows, int64_t d, int dims, const Vec* square) {
    for (int i = 0; i < dims; ++i) store(panel + (d + i) * panel_rows, square[i]);
  }

  static CUDAPREFILL_INLINE Vec joined(const Vec (&keys)[1]) { return keys[0]; }

  void set_tile(const Tile& tile) {
    if constexpr (kCopies) {
      copy(tile.keys, tile.count, key_copies_, key_pointers_);
      copy(tile.values, tile.count, value_copies_, value_pointers_);
      keys_ = key_pointers_;
      values_ = value_pointers_;
    } else {
      keys_ = tile.keys;
      values_ = tile.values;
    }
  }

  // scores[j][row] = sum over d of keys[key + j][d] * q[d][row], for kBlock keys; highest is raised to them. Long sums
  // are made of shorter ones, so that rounding does not grow with the head.
  //
  // This and output_block are functions of their own: together in one, they have more to keep than registers.
  template <int kVectors>
  __attribute__((noinline)) void score_block(const float* q, int64_t key, float* scores,
                                             Vec (&highest)[kVectors]) const {
    constexpr int kRows = kVectors * Vec::kWidth;
    constexpr int64_t kSummands = 64;
    const int64_t head_size = head_size_;
    const float* rows[kBlock];
#pragma GCC unroll 8
    for (int j = 0; j < kBlock; ++j) rows[j] = keys_[key + j];
    for (int64_t first = 0; first < head_size; first += kSummands) {
      const int64_t end = std::min(head_size, first + kSummands);
      Vec sums[kBlock][kVectors];
#pragma GCC unroll 8
      for (int j = 0; j < kBlock; ++j) {
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) sums[j][v] = zero();
      }
      for (int64_t d = first; d < end; ++d, q += kRows) {
#pragma GCC unroll 8
        for (int j = 0; j < kBlock; ++j) {
          const Vec x = broadcast(rows[j][d]);
#pragma GCC unroll 4
          for (int v = 0; v < kVectors; ++v) sums[j][v] = fma(x, load(q + v * Vec::kWidth), sums[j][v]);
        }
      }
      if (first > 0) {
#pragma GCC unroll 8
        for (int j = 0; j < kBlock; ++j) {
#pragma GCC unroll 4
          for (int v = 0; v < kVectors; ++v) sums[j][v] = load(scores + j * kRows + v * Vec::kWidth) + sums[j][v];
        }
      }
      if (end == head_size) {
        store_scores(sums, scores, highest);
      } else {
        store_block(sums, scores);
      }
    }
  }

  // out[i][row] = out[i][row] * decay[row] + sum over j of values[key + j][d + i] * weights[j][row], for kDims
  // dimensions. Returns the weights after their last.
  template <int kVectors, int kDims, class Weights>
  __attribute__((noinline)) Weights output_block(Weights weights, int64_t key, int64_t num_keys, int64_t d,
                                                 const Vec* decay, float* out) const {
    Vec sums[kDims][kVectors];
    load_decayed(out, decay, sums);
    const float* const* rows = values_ + key;
    for (int64_t j = 0; j < num_keys; ++j) {
      Vec weight[kVectors];
      weights.next(weight);
#pragma GCC unroll 8
      for (int i = 0; i < kDims; ++i) {
        const Vec x = broadcast(rows[j][d + i]);
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) sums[i][v] = fma(x, weight[v], sums[i][v]);
      }
    }
    store_block(sums, out);
    return weights;
  }

 private:
  static constexpr bool kCopies = !std::is_same_v<Kv, float>;

  static int64_t copies_size(int64_t head_size) { return kCopies ? kTileKeys * head_size : 0; }

  void copy(const Kv* const* rows, int32_t count, float* copies, const float** pointers) const {
    convert_rows(rows, count, head_size_, copies);
    for (int32_t i = 0; i < Tile::kSize; ++i) {
      pointers[i] = copies + static_cast<int64_t>(std::min(i, count - 1)) * head_size_;
    }
  }

  int64_t head_size_;
  const float* const* keys_;
  const float* const* values_;
  float* key_copies_;
  float* value_copies_;
  const float* key_pointers_[kCopies ? Tile::kSize : 1];
  const float* value_pointers_[kCopies ? Tile::kSize : 1];
};

}  // namespace cudaprefill::cpu::CUDAPREFILL_ISA
