// One panel of rows against one tile of keys: the sizes of the register blocks of prefill attention and the online
// softmax between its two products. prefill_attention_worker.h says how these make up a whole.
#pragma once

#include <algorithm>
#include <cstdint>

#include "csrc/cpu/attention_math.h"

namespace cudaprefill::cpu::CUDAPREFILL_ISA {

constexpr int kTileKeys = 128;

// A register block: kPanelVectors of rows times kBlock keys (scores) or dimensions (outputs). With the vectors of rows
// and a broadcast they fill the registers of the level: 32 at AVX-512, 16 elsewhere.
constexpr int kPanelVectors = 3;
constexpr int kBlock = CUDAPREFILL_ISA_AVX512 ? 8 : 4;
constexpr int kPanelRows = kPanelVectors * Vec::kWidth;

// Which keys the rows of a panel see in one tile. Keys and rows are counted from the position of the item's first
// token, so all that matters for the comparison is small enough to be exact.
struct TileMask {
  bool causal, window;  // whether any row of the panel fails to see some key for that reason
  float first_key;      // the first key of the tile
  float window_size;
  const float* row_offset;  // [rows] of the panel: the token of each row
};

// The running softmax of a panel takes in a tile: scores become weights relative to the highest score so far. Returns
// in decay what the sums up to now must be multiplied by. The weights of Products::kKeysOfWeight keys end up in one
// vector of each, as Products::store_weights puts them there; keys that fill up the last of these weigh nothing.
template <int kVectors, class Products>
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
  constexpr int kKeys = Products::kKeysOfWeight;
  for (int64_t j = 0; j < num_keys; j += kKeys) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      Vec weights[kKeys];
#pragma GCC unroll 2
      for (int i = 0; i < kKeys; ++i) {
        weights[i] = j + i < num_keys ? exp2(load(scores + (j + i) * kRows + v * Vec::kWidth) - now[v]) : zero();
        sums[v] = sums[v] + weights[i];
      }
      Products::store_weights(scores + j / kKeys * kRows + v * Vec::kWidth, weights);
    }
  }
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    float* at = total + v * Vec::kWidth;
    store(at, fma(load(at), decay[v], sums[v]));
  }
}

}  // namespace cudaprefill::cpu::CUDAPREFILL_ISA
