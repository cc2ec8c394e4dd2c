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
// The first block of dimensions is half as large: there the scores become weights, which takes registers, too.
constexpr int kFirstBlock = kBlock / 2;

// Which keys the rows of a panel see in one tile. Keys and rows are counted from the position of the item's first
// token, so all that matters for the comparison is small enough to be exact.
struct TileMask {
  bool causal, window;  // whether any row of the panel fails to see some key of the tile for that reason
  float first_key;      // the first key of the tile
  float window_size;
  const float* row_offset;  // [rows] of the panel: the token of each row
};

// Stores the scores of kBlock keys, and raises highest to them.
template <int kVectors>
CUDAPREFILL_INLINE void store_scores(const Vec (&sums)[kBlock][kVectors], float* scores, Vec (&highest)[kVectors]) {
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) {
    Vec most = highest[v];
#pragma GCC unroll 8
    for (int j = 0; j < kBlock; ++j) {
      store(scores + (j * kVectors + v) * Vec::kWidth, sums[j][v]);
      most = max(most, sums[j][v]);
    }
    highest[v] = most;
  }
}

// out[i][row] of a few dimensions, times decay[row], to go on from.
template <int kVectors, int kDims>
CUDAPREFILL_INLINE void load_decayed(const float* out, const Vec* decay, Vec (&sums)[kDims][kVectors]) {
#pragma GCC unroll 8
  for (int i = 0; i < kDims; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sums[i][v] = load(out + (i * kVectors + v) * Vec::kWidth) * decay[v];
  }
}

template <int kVectors, int kDims>
CUDAPREFILL_INLINE void store_block(const Vec (&sums)[kDims][kVectors], float* out) {
#pragma GCC unroll 8
  for (int i = 0; i < kDims; ++i) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) store(out + (i * kVectors + v) * Vec::kWidth, sums[i][v]);
  }
}

// Scores become what soft cap and mask make of them, and highest is raised to them.
template <int kVectors>
void cap_and_mask(float* scores, int64_t num_keys, const TileMask& mask, float softcap, Vec (&highest)[kVectors]) {
  for (int64_t j = 0; j < num_keys; ++j, scores += kVectors * Vec::kWidth) {
    const float key = mask.first_key + static_cast<float>(j);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      Vec score = load(scores + v * Vec::kWidth);
      if (softcap > 0) score = soft_capped(score, softcap);
      const Vec row = load(mask.row_offset + v * Vec::kWidth);
      if (mask.causal) score = where_less(row, broadcast(key), broadcast(kMasked), score);
      if (mask.window) score = where_less(row, broadcast(key + mask.window_size), score, broadcast(kMasked));
      store(scores + v * Vec::kWidth, score);
      highest[v] = max(highest[v], score);
    }
  }
}

// The weights of a panel, those of Products::kKeysOfWeight keys in one vector for each vector of rows, as a product
// takes them one after the other. Two kinds: these lie in memory.
template <int kVectors>
class StoredWeights {
 public:
  explicit StoredWeights(const float* weights) : weights_(weights) {}

  CUDAPREFILL_INLINE void next(Vec (&weights)[kVectors]) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) weights[v] = load(weights_ + v * Vec::kWidth);
    weights_ += kVectors * Vec::kWidth;
  }

 private:
  const float* weights_;
};

// And these are made on the way of the scores, relative to the highest so far, take their place and are added up. Much
// of that needs other units than products do and costs no time beside one, if it is done a few steps before the product
// asks for it. Keys that fill up the last vector weigh nothing.
template <int kVectors, class Products>
class ScoresToWeights {
 public:
  ScoresToWeights(float* scores, int64_t num_keys, const float* highest)
      : scores_(scores), weights_(scores), keys_left_(num_keys), highest_(highest), made_(scores) {
    constexpr int kStepsAhead = 4;
    for (Vec& sum : sums_) sum = zero();
    for (int i = 0; i < kStepsAhead; ++i) make();
  }

  CUDAPREFILL_INLINE void next(Vec (&weights)[kVectors]) {
    made_.next(weights);
    make();
  }

  Vec sum(int v) const { return sums_[v]; }

 private:
  CUDAPREFILL_INLINE void make() {
    constexpr int kKeys = Products::kKeysOfWeight;
    constexpr int kRows = kVectors * Vec::kWidth;
    if (keys_left_ <= 0) return;
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const Vec highest = load(highest_ + v * Vec::kWidth);
      Vec keys[kKeys];
#pragma GCC unroll 2
      for (int i = 0; i < kKeys; ++i) {
        keys[i] = i < keys_left_ ? exp2(load(scores_ + i * kRows + v * Vec::kWidth) - highest) : zero();
        sums_[v] = sums_[v] + keys[i];
      }
      store(weights_ + v * Vec::kWidth, Products::joined(keys));
    }
    scores_ += kKeys * kRows;
    weights_ += kRows;
    keys_left_ -= kKeys;
  }

  const float* scores_;
  float* weights_;
  int64_t keys_left_;
  const float* highest_;
  StoredWeights<kVectors> made_;
  Vec sums_[kVectors];
};

}  // namespace cudaprefill::cpu::CUDAPREFILL_ISA
