// Attention of one new token of each request over the paged cache: K and V stream from memory once, for all query heads
// of their KV head, and are all that takes time.
//
// The dimensions of a head lie in the lanes. The keys of a request may be split over threads; the parts are merged as
// they would have been had one thread gone on, so the number of splits changes the rounding only.
#include <algorithm>
#include <memory>
#include <vector>

#include "csrc/cpu/attention_checks.h"
#include "csrc/cpu/attention_keys.h"
#include "csrc/cpu/attention_math.h"
#include "csrc/cpu/attention_schedule.h"
#include "csrc/cpu/attention_scratch.h"
#include "csrc/cpu/cache_scales.h"
#include "csrc/cpu/kernel_declarations.h"

namespace cudaprefill::cpu::CUDAPREFILL_ISA {
namespace {

constexpr int kTileKeys = 64;
// A register block of scores is kKeys keys times kMaxHeads heads, one of outputs kMaxHeads heads times kMaxVectors
// vectors of dimensions.
constexpr int kKeys = 4;
constexpr int kMaxHeads = CUDAPREFILL_ISA_AVX512 ? 4 : 2;
constexpr int kMaxVectors = 4;

int64_t rounded(int64_t count) { return (count + Vec::kWidth - 1) / Vec::kWidth * Vec::kWidth; }

// scores[h][j] = q[h] . keys[j] for kKeys keys. Rows of q are `q_stride` floats, filled up with zeros.
template <int kHeads, class Kv>
__attribute__((noinline)) void score_block(const float* q, int64_t q_stride, const Kv* const* keys, int64_t head_size,
                                           float* scores) {
  Vec sums[kHeads][kKeys];
  for (int h = 0; h < kHeads; ++h) {
    for (int j = 0; j < kKeys; ++j) sums[h][j] = zero();
  }
  const Kv* rows[kKeys];
#pragma GCC unroll 4
  for (int j = 0; j < kKeys; ++j) rows[j] = keys[j];
  const auto add = [&](int64_t d, auto&& load_key) {
    Vec key[kKeys];
#pragma GCC unroll 4
    for (int j = 0; j < kKeys; ++j) key[j] = load_key(rows[j] + d);
#pragma GCC unroll 4
    for (int h = 0; h < kHeads; ++h) {
      const Vec query = load(q + h * q_stride + d);
#pragma GCC unroll 4
      for (int j = 0; j < kKeys; ++j) sums[h][j] = fma(query, key[j], sums[h][j]);
    }
  };
  for_each_vector(
      head_size, [&](int64_t d) { add(d, [](const Kv* key) { return load(key); }); },
      [&](int64_t d, int rest) { add(d, [rest](const Kv* key) { return load_first(key, rest); }); });
#pragma GCC unroll 4
  for (int h = 0; h < kHeads; ++h) {
    store_sums(scores + h * kTileKeys, sums[h][0], sums[h][1], sums[h][2], sums[h][3]);
  }
}

// out[h] = out[h] * decay[h] + sum over keys of weights[h][key] * values[key], for kVectors vectors of dimensions, of
// which load_value loads one.
template <int kHeads, int kVectors, class Kv, class LoadValue>
__attribute__((noinline)) void output_block(const float* weights, const Kv* const* values, const Kv* const* next_values,
                                            int64_t num_keys, const float* decay, int64_t d, float* out,
                                            int64_t out_stride, const LoadValue& load_value) {
  Vec sums[kHeads][kVectors];
#pragma GCC unroll 4
  for (int h = 0; h < kHeads; ++h) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      sums[h][v] = load(out + h * out_stride + d + v * Vec::kWidth) * broadcast(decay[h]);
    }
  }
  for (int64_t key = 0; key < num_keys; ++key) {
    prefetch_row<1>(next_values[key] + d, kVectors * Vec::kWidth);
    const Kv* row = values[key] + d;
    Vec value[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) value[v] = load_value(row + v * Vec::kWidth);
#pragma GCC unroll 4
    for (int h = 0; h < kHeads; ++h) {
      const Vec weight = broadcast(weights[h * kTileKeys + key]);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[h][v] = fma(weight, value[v], sums[h][v]);
    }
  }
#pragma GCC unroll 4
  for (int h = 0; h < kHeads; ++h) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) store(out + h * out_stride + d + v * Vec::kWidth, sums[h][v]);
  }
}

// Calls body.operator()<heads>(h) for consecutive blocks of the heads h .. count - 1, as large as they can be.
template <int kHeads = kMaxHeads, class Body>
void for_each_head_block(int64_t h, int64_t count, const Body& body) {
  for (; h + kHeads <= count; h += kHeads) body.template operator()<kHeads>(h);
  if constexpr (kHeads > 1) for_each_head_block<kHeads - 1>(h, count, body);
}

// One head takes in a tile: its scores, of which `num_keys` are real, become weights relative to the highest score so
// far. Returns what its sums up to now must be multiplied by.
float update_softmax(float* scores, int64_t num_keys, float softcap, float* highest, float* total) {
  const int64_t padded = rounded(num_keys);
  std::fill(scores + num_keys, scores + padded, kMasked);
  Vec most = broadcast(*highest);
  for (int64_t j = 0; j < padded; j += Vec::kWidth) {
    if (softcap > 0) {
      const Vec capped = soft_capped(load(scores + j), softcap);
      store_first(scores + j, capped, static_cast<int>(std::min<int64_t>(Vec::kWidth, num_keys - j)));
    }
    most = max(most, load(scores + j));
  }
  const float now = largest(most);
  Vec sums = zero();
  for (int64_t j = 0; j < padded; j += Vec::kWidth) {
    const Vec weight = exp2(load(scores + j) - broadcast(now));
    sums = sums + weight;
    store(scores + j, weight);
  }
  const float decay = exp2(*highest - now);
  *total = *total * decay + sum(sums);
  *highest = now;
  return decay;
}

// What the heads of an item have gathered: outputs [heads, rounded head_size], then of each head the highest score and
// the sum of the weights relative to it.
struct HeadSums {
  static int64_t size(int64_t heads, int64_t head_size) { return heads * (rounded(head_size) + 2); }

  HeadSums(float* memory, int64_t heads, int64_t head_size)
      : out(memory), highest(memory + heads * rounded(head_size)), total(highest + heads) {}

  float* out;
  float* highest;
  float* total;
};

template <class Kv>
class Worker {
 public:
  // `partials` [num_partials, HeadSums::size()] is shared by the workers of a call.
  Worker(const DecodeAttentionParams& params, float* partials)
      : params_(params),
        partials_(partials),
        heads_(params.num_q_heads / params.num_kv_heads),
        stride_(rounded(params.head_size)),
        scale_(params.scale, params.softcap) {
    const int64_t sums = HeadSums::size(heads_, params.head_size);
    ScratchParts parts(thread_scratch(heads_ * (stride_ + kTileKeys + 1) + sums + 4 * ScratchParts::kLine));
    q_ = parts.take(heads_ * stride_);
    scores_ = parts.take(heads_ * kTileKeys);
    decay_ = parts.take(heads_);
    whole_ = parts.take(sums);
  }

  void attend(const AttentionPiece& piece) {
    const AttentionItem& item = piece.item;
    load_query(item);
    const bool is_whole = piece.partial == AttentionPiece::kWhole;
    const HeadSums sums = is_whole ? head_sums(whole_) : partial(piece.partial);
    std::fill_n(sums.out, heads_ * stride_, 0.0f);
    std::fill_n(sums.highest, heads_, kNoScore);
    std::fill_n(sums.total, heads_, 0.0f);
    for_each_tile<Tile>(params_, item, [&](const Tile& tile, const Tile& next) { attend_tile(sums, tile, next); });
    if (is_whole) write_out(item, sums);
  }

  void merge(const AttentionItem& item, int32_t first_partial, int32_t num_partials) {
    const HeadSums sums = partial(first_partial);
    for (int32_t i = 1; i < num_partials; ++i) add_partial(sums, partial(first_partial + i));
    write_out(item, sums);
  }

 private:
  using Tile = KeyTile<Kv, kTileKeys, kKeys>;

  HeadSums head_sums(float* memory) const { return {memory, heads_, params_.head_size}; }

  HeadSums partial(int64_t index) const {
    return head_sums(partials_ + index * HeadSums::size(heads_, params_.head_size));
  }

  void load_query(const AttentionItem& item) {
    with_element_type(params_.dtype, [&](auto element) {
      using T = decltype(element);
      const Vec scale = broadcast(scale_.product * scale_of(params_.k_cache, item.kv_head));
      for (int64_t h = 0; h < heads_; ++h) {
        const T* from = static_cast<const T*>(params_.q.data) + item.request * params_.q.token_stride +
                        (item.kv_head * heads_ + h) * params_.q.head_stride;
        float* to = q_ + h * stride_;
        for_each_vector(
            params_.head_size, [&](int64_t d) { store(to + d, load(from + d) * scale); },
            [&](int64_t d, int rest) { store(to + d, load_first(from + d, rest) * scale); });
      }
    });
  }

  void attend_tile(const HeadSums& sums, const Tile& tile, const Tile& next) {
    for (int32_t j = 0; j < tile.count; j += kKeys) {
      for (int k = 0; k < kKeys; ++k) prefetch_row<1>(next.keys[j + k], params_.head_size);
      for_each_head_block(0, heads_, [&]<int kHeads>(int64_t h) {
        score_block<kHeads>(q_ + h * stride_, stride_, tile.keys + j, params_.head_size, scores_ + h * kTileKeys + j);
      });
    }
    for (int64_t h = 0; h < heads_; ++h) {
      decay_[h] = update_softmax(scores_ + h * kTileKeys, tile.count, scale_.softcap, sums.highest + h, sums.total + h);
    }
    for_each_head_block(
        0, heads_, [&]<int kHeads>(int64_t h) { add_values<kHeads>(sums, h, tile.values, next.values, tile.count); });
  }

  template <int kHeads>
  void add_values(const HeadSums& sums, int64_t h, const Kv* const* values, const Kv* const* next_values,
                  int64_t count) const {
    const float* weights = scores_ + h * kTileKeys;
    float* out = sums.out + h * stride_;
    const auto whole = [](const Kv* value) { return load(value); };
    int64_t d = 0;
    for (; d + kMaxVectors * Vec::kWidth <= params_.head_size; d += kMaxVectors * Vec::kWidth) {
      output_block<kHeads, kMaxVectors>(weights, values, next_values, count, decay_ + h, d, out, stride_, whole);
    }
    for (; d + Vec::kWidth <= params_.head_size; d += Vec::kWidth) {
      output_block<kHeads, 1>(weights, values, next_values, count, decay_ + h, d, out, stride_, whole);
    }
    if (const int rest = static_cast<int>(params_.head_size - d); rest > 0) {
      output_block<kHeads, 1>(weights, values, next_values, count, decay_ + h, d, out, stride_,
                              [rest](const Kv* value) { return load_first(value, rest); });
    }
  }

  // sums += other, both brought to the higher of their highest scores. One that saw no key weighs nothing.
  void add_partial(const HeadSums& sums, const HeadSums& other) const {
    for (int64_t h = 0; h < heads_; ++h) {
      const float highest = std::max(sums.highest[h], other.highest[h]);
      const float own_weight = exp2(sums.highest[h] - highest), other_weight = exp2(other.highest[h] - highest);
      sums.highest[h] = highest;
      sums.total[h] = sums.total[h] * own_weight + other.total[h] * other_weight;
      for (int64_t i = h * stride_; i < (h + 1) * stride_; i += Vec::kWidth) {
        store(sums.out + i,
              fma(load(sums.out + i), broadcast(own_weight), load(other.out + i) * broadcast(other_weight)));
      }
    }
  }

  void write_out(const AttentionItem& item, const HeadSums& sums) const {
    const float value_scale = scale_of(params_.v_cache, item.kv_head);
    with_element_type(params_.dtype, [&](auto element) {
      using T = decltype(element);
      for (int64_t h = 0; h < heads_; ++h) {
        T* to = static_cast<T*>(params_.out.data) + item.request * params_.out.token_stride +
                (item.kv_head * heads_ + h) * params_.out.head_stride;
        const float* from = sums.out + h * stride_;
        const Vec share = broadcast(value_scale / sums.total[h]);
        for_each_vector(
            params_.head_size, [&](int64_t d) { store(to + d, load(from + d) * share); },
            [&](int64_t d, int rest) { store_first(to + d, load(from + d) * share, rest); });
      }
    });
  }

  const DecodeAttentionParams& params_;
  float* partials_;
  int64_t heads_;   // of q, for one KV head
  int64_t stride_;  // floats of a row of q and of the outputs
  ScoreScale scale_;
  float* q_;
  float* scores_;
  float* decay_;
  float* whole_;
};

void clear_out(const DecodeAttentionParams& params, int64_t request) {
  with_element_type(params.dtype, [&](auto element) {
    using T = decltype(element);
    for (int64_t head = 0; head < params.num_q_heads; ++head) {
      std::fill_n(static_cast<T*>(params.out.data) + request * params.out.token_stride + head * params.out.head_stride,
                  params.head_size, from_float<T>(0.0f));
    }
  });
}

std::vector<AttentionItem> items_of(const DecodeAttentionParams& params) {
  std::vector<AttentionItem> items;
  items.reserve(static_cast<int64_t>(params.num_requests) * params.num_kv_heads);
  for (int32_t request = 0; request < params.num_requests; ++request) {
    const int32_t length = params.context_lens[request];
    if (length == 0) continue;
    for (int32_t kv_head = 0; kv_head < params.num_kv_heads; ++kv_head) {
      items.push_back({request, kv_head, 0, 1, first_visible_key(length - 1, params.window), length});
    }
  }
  return items;
}

}  // namespace

void decode_attention(const DecodeAttentionParams& params) {
  check_values(params);
  for (int32_t request = 0; request < params.num_requests; ++request) {
    if (params.context_lens[request] == 0) clear_out(params, request);
  }
  with_cache_type(params.kv_dtype, [&](auto kv) {
    using Kv = decltype(kv);
    // A share of 256 KiB of keys and values is worth waking a thread for: some 10 microseconds.
    const int64_t keys_of_share = std::max<int64_t>(262'144 / (2 * params.head_size * sizeof(Kv)), 1);
    const AttentionSchedule schedule(items_of(params), keys_of_share, kTileKeys);
    const auto partials = std::make_unique_for_overwrite<float[]>(
        schedule.num_partials() * HeadSums::size(params.num_q_heads / params.num_kv_heads, params.head_size));
    schedule.run([&] { return Worker<Kv>(params, partials.get()); });
  });
}

}  // namespace cudaprefill::cpu::CUDAPREFILL_ISA
