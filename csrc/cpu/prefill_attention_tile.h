// One panel of rows against one tile of keys: the register blocks of prefill attention and the online softmax between
// them. prefill_attention.cc says how these make up a whole.
#pragma once

#include <algorithm>
#include <cstdint>

#include "csrc/cpu/attention_math.h"

namespace cudaprefill::cpu::CUDAPREFILL_ISA {

// A register block: kPanelVectors of rows times kBlock keys (scores) or dimensions (outputs). With the vectors of rows
// and a broadcast they fill the registers of the level: 32 at AVX-512, 16 elsewhere.
constexpr int kPanelVectors = 3;
constexpr int kBlock = CUDAPREFILL_ISA_AVX512 ? 8 : 4;
constexpr int kPanelRows = kPanelVectors * Vec::kWidth;

// scores[j][row] = sum over d of keys[j][d] * q[d][row], for kBlock keys. Long sums are made of shorter ones, so that
// rounding does not grow with the head.
template <int kVectors>
void score_block(const float* q, const float* const* keys, int64_t head_size, float* scores) {
  constexpr int kRows = kVectors * Vec::kWidth;
  constexpr int64_t kSummands = 64;
  const float* rows[kBlock];
#pragma GCC unroll 8
  for (int j = 0; j < kBlock; ++j) rows[j] = keys[j];
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
        const Vec key = broadcast(rows[j][d]);
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) sums[j][v] = fma(key, load(q + v * Vec::kWidth), sums[j][v]);
      }
    }
#pragma GCC unroll 8
    for (int j = 0; j < kBlock; ++j) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        float* to = scores + j * kRows + v * Vec::kWidth;
        store(to, first == 0 ? sums[j][v] : load(to) + sums[j][v]);
      }
    }
  }
}

// out[i][row] = out[i][row] * decay[row] + sum over keys of values[key][d + i] * weights[key][row], for kDims
// dimensions.
template <int kVectors, int kDims>
void output_block(const float* weights, const float* const* values, int64_t num_keys, int64_t d, const Vec* decay,
                  float* out) {
  constexpr int kRows = kVectors * Vec::kWidth;
  Vec sums[kDims][kVectors];
#pragma GCC unroll 8
  for (int i = 0; i < kDims; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sums[i][v] = load(out + i * kRows + v * Vec::kWidth) * decay[v];
  }
  for (int64_t key = 0; key < num_keys; ++key, weights += kRows) {
    const float* value = values[key] + d;
#pragma GCC unroll 8
    for (int i = 0; i < kDims; ++i) {
      const Vec x = broadcast(value[i]);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[i][v] = fma(x, load(weights + v * Vec::kWidth), sums[i][v]);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kDims; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) store(out + i * kRows + v * Vec::kWidth, sums[i][v]);
  }
}

// Which keys the rows of a panel see in one tile. Keys and rows are counted from the position of the item's first
// token, so all that matters for the comparison is small enough to be exact.
struct TileMask {
  bool causal, window;  // whether any row of the panel fails to see some key for that reason
  float first_key;      // the first key of the tile
  float window_size;
  const float* row_offset;  // [rows] of the panel: the token of each row
};

// The running softmax of a panel takes in a tile: scores become weights relative to the highest score so far. Returns
// in decay what the sums up to now must be multiplied by.
template <int kVectors>
void update_softmax(float* scores, int64_t num_keys, const TileMask& mask, float softcap, float* highest, float* total,
                    Vec* decay) {
  constexpr int kRows = kVectors * Vec::kWidth;
  Vec now[kVectors];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) now[v] = load(highest + v * Vec::kWidth);
  const bool rewrite = mask.causal || mask.window || softcap > 0;
  for (int64_t j = 0; j < num_keys; ++j) {
    const float key = mask.first_key + static_cast<float>(j);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      float* at = scores + j * kRows + v * Vec::kWidth;
      Vec score = load(at);
      if (rewrite) {
        if (softcap > 0) score = soft_capped(score, softcap);
        const Vec row = load(mask.row_offset + v * Vec::kWidth);
        if (mask.causal) score = where_less(row, broadcast(key), broadcast(kMasked), score);
        if (mask.window) score = where_less(row, broadcast(key + mask.window_size), score, broadcast(kMasked));
        store(at, score);
      }
      now[v] = max(now[v], score);
    }
  }
  Vec sums[kVectors];
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    decay[v] = exp2(load(highest + v * Vec::kWidth) - now[v]);
    store(highest + v * Vec::kWidth, now[v]);
    sums[v] = zero();
  }
  for (int64_t j = 0; j < num_keys; ++j) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      float* at = scores + j * kRows + v * Vec::kWidth;
      const Vec weight = exp2(load(at) - now[v]);
      sums[v] = sums[v] + weight;
      store(at, weight);
    }
  }
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    float* at = total + v * Vec::kWidth;
    store(at, fma(load(at), decay[v], sums[v]));
  }
}

}  // namespace cudaprefill::cpu::CUDAPREFILL_ISA
