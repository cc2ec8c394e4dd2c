// The products of prefill attention from bfloat16, two at once: AVX512_BF16 multiplies pairs and adds them to float32.
//
//     scores [key][row]  +=  K[key][2i] * Qt[2i][row] + K[key][2i + 1] * Qt[2i + 1][row]
//     Ot     [d][row]    +=  V[2j][d] * weights[2j][row] + V[2j + 1][d] * weights[2j + 1][row]
//
// A pair lies in the 32 bits of one lane, its first number in the low half. The pairs of K are read as they lie in the
// cache; those of V, which lie a row apart, are brought together once a tile. Queries and weights are rounded to
// bfloat16, all sums are float32.
#pragma once

#include <immintrin.h>

#include <cstring>

#include "csrc/cpu/attention_keys.h"
#include "csrc/cpu/attention_scratch.h"
#include "csrc/cpu/prefill_attention_tile.h"

namespace cudaprefill::cpu::CUDAPREFILL_ISA {

class BFloat16Products {
 public:
  using Tile = KeyTile<BFloat16, kTileKeys, kBlock>;

  static constexpr int kKeysOfWeight = 2;

  static bool can_do(int64_t head_size) { return head_size % 2 == 0; }

  static int64_t scratch_size(int64_t head_size) { return ScratchParts::rounded(kTileKeys / 2 * head_size); }

  BFloat16Products(ScratchParts* parts, int64_t head_size)
      : head_size_(head_size), values_(reinterpret_cast<uint32_t*>(parts->take(kTileKeys / 2 * head_size))) {}

  // q[d / 2][row] of a panel, for `dims` dimensions from d on in the vectors of `square`; both are even.
  static void store_queries(float* panel, int64_t panel_rows, int64_t d, int dims, const Vec* square) {
    for (int i = 0; i < dims; i += 2) store(panel + (d + i) / 2 * panel_rows, pairs_of(square[i], square[i + 1]));
  }

  static CUDAPREFILL_INLINE Vec joined(const Vec (&keys)[2]) { return pairs_of(keys[0], keys[1]); }

  void set_tile(const Tile& tile) {
    keys_ = tile.keys;
    for (int32_t j = 0; j < tile.count; j += 2) {
      const bool has_second = j + 1 < tile.count;
      uint32_t* to = values_ + j / 2 * head_size_;
      for (int64_t d = 0; d < head_size_; d += Vec::kWidth) {
        const __mmask16 dims = first_lanes(static_cast<int>(std::min<int64_t>(Vec::kWidth, head_size_ - d)));
        const __m512i first = load_bits(tile.values[j] + d, dims);
        const __m512i second = has_second ? load_bits(tile.values[j + 1] + d, dims) : _mm512_setzero_si512();
        _mm512_mask_storeu_epi32(to + d, dims, _mm512_or_si512(first, _mm512_slli_epi32(second, 16)));
      }
    }
  }

  // scores[j][row] = sum over d of keys[key + j][d] * q[d][row], for kBlock keys; highest is raised to them.
  template <int kVectors>
  __attribute__((noinline)) void score_block(const float* q, int64_t key, float* scores,
                                             Vec (&highest)[kVectors]) const {
    constexpr int kRows = kVectors * Vec::kWidth;
    const int64_t head_size = head_size_;
    const BFloat16* rows[kBlock];
    Vec sums[kBlock][kVectors];
#pragma GCC unroll 8
    for (int j = 0; j < kBlock; ++j) {
      rows[j] = keys_[key + j];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[j][v] = zero();
    }
    for (int64_t d = 0; d < head_size; d += 2, q += kRows) {
      Vec queries[kVectors];
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) queries[v] = load(q + v * Vec::kWidth);
#pragma GCC unroll 8
      for (int j = 0; j < kBlock; ++j) {
        uint32_t pair;
        std::memcpy(&pair, rows[j] + d, sizeof(pair));
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) sums[j][v] = add_products(sums[j][v], queries[v], pair);
      }
    }
    store_scores(sums, scores, highest);
  }

  // out[i][row] = out[i][row] * decay[row] + sum over j of values[key + j][d + i] * weights[j][row], for kDims
  // dimensions. `key` is even. Returns the weights after their last.
  template <int kVectors, int kDims, class Weights>
  __attribute__((noinline)) Weights output_block(Weights weights, int64_t key, int64_t num_keys, int64_t d,
                                                 const Vec* decay, float* out) const {
    Vec sums[kDims][kVectors];
    load_decayed(out, decay, sums);
    const int64_t head_size = head_size_;
    const uint32_t* values = values_ + key / 2 * head_size + d;
    for (int64_t j = 0; j < num_keys; j += 2, values += head_size) {
      Vec weight[kVectors];
      weights.next(weight);
#pragma GCC unroll 8
      for (int i = 0; i < kDims; ++i) {
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) sums[i][v] = add_products(sums[i][v], weight[v], values[i]);
      }
    }
    store_block(sums, out);
    return weights;
  }

 private:
  static CUDAPREFILL_INLINE Vec pairs_of(Vec first, Vec second) {
    const __m512i halves = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(second.lanes, first.lanes));
    return {_mm512_castsi512_ps(_mm512_permutexvar_epi16(interleaved(), halves))};
  }

  // 0, 16, 1, 17, ...
  static CUDAPREFILL_INLINE __m512i interleaved() {
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return _mm512_or_si512(lanes, _mm512_slli_epi32(_mm512_add_epi32(lanes, _mm512_set1_epi32(16)), 16));
  }

  static CUDAPREFILL_INLINE __m512i load_bits(const BFloat16* from, __mmask16 lanes) {
    return _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, from));
  }

  // sums + the two products of each lane of `pairs` with `pair`.
  static CUDAPREFILL_INLINE Vec add_products(Vec sums, Vec pairs, uint32_t pair) {
    return {_mm512_dpbf16_ps(sums.lanes, reinterpret_cast<__m512bh>(pairs.lanes),
                             reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int32_t>(pair))))};
  }

  int64_t head_size_;
  const BFloat16* const* keys_;
  uint32_t* values_;
};

}  // namespace cudaprefill::cpu::CUDAPREFILL_ISA
