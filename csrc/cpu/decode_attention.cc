// Attention of one new token of each request over the paged cache: K and V stream from memory once, for all query
// heads, and are all that takes time.
//
// A block holds its KV heads one after the other, and they are read in this order, some way ahead of the computation:
//
//                        block 0                         block 1
//     K of a tile    1   | head 0 | head 1 | ... |   2   | head 0 | head 1 | ... |         scores
//     V of a tile    3   | head 0 | head 1 | ... |   4   | head 0 | head 1 | ... |         outputs, softmax in between
//
// Heads in turn, each with all its keys, would be runs of a few KiB with gaps, which memory gives more slowly.
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

constexpr int32_t kTileKeys = 256;
// A run is the rows of one KV head that are read before those of the next head: a block, or so many keys where blocks
// are shorter or do not fill a tile.
constexpr int32_t kRunKeys = 16;
// Memory is asked for rows so many bytes ahead. On a Zen 5, half and twice as much were slower.
constexpr int64_t kBytesAhead = 8192;
// A register block of scores is kKeys keys times kMaxHeads heads, one of outputs kMaxHeads heads times kMaxVectors
// vectors of dimensions.
constexpr int kKeys = 4;
constexpr int kMaxHeads = CUDAPREFILL_ISA_AVX512 ? 4 : 2;
constexpr int kMaxVectors = 4;

int64_t rounded(int64_t count) { return (count + Vec::kWidth - 1) / Vec::kWidth * Vec::kWidth; }

// Rows of K or V of one KV head. Those of the first KV head lie where `first_head` says, and these `offset` further on.
template <class Kv>
struct HeadRun {
  const Kv* const* first_head;
  int64_t offset;

  CUDAPREFILL_INLINE const Kv* operator[](int64_t key) const { return first_head[key] + offset; }
};

// scores[h][j] = q[h] . keys[j] for `num_keys` keys, rounded up to kKeys, while the rows of `ahead` are asked for. Rows
// of q are `q_stride` floats, filled up with zeros.
template <int kHeads, class Kv>
__attribute__((noinline)) void score_keys(const float* q, int64_t q_stride, HeadRun<Kv> keys, HeadRun<Kv> ahead,
                                          int64_t num_keys, int64_t head_size, float* scores) {
  for (int64_t first = 0; first < num_keys; first += kKeys) {
    Vec sums[kHeads][kKeys];
#pragma GCC unroll 4
    for (int h = 0; h < kHeads; ++h) {
#pragma GCC unroll 4
      for (int j = 0; j < kKeys; ++j) sums[h][j] = zero();
    }
    for (int j = 0; j < kKeys; ++j) prefetch_row<1>(ahead[first + j], head_size);
    const Kv* rows[kKeys];
#pragma GCC unroll 4
    for (int j = 0; j < kKeys; ++j) rows[j] = keys[first + j];
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
      store_sums(scores + h * kTileKeys + first, sums[h][0], sums[h][1], sums[h][2], sums[h][3]);
    }
  }
}

// out[h] += sum over keys of weights[h][key] * values[key], for kVectors vectors of dimensions, of which load_value
// loads one, while the rows of `ahead` are asked for.
template <int kHeads, int kVectors, class Kv, class LoadValue>
__attribute__((noinline)) void add_values(const float* weights, HeadRun<Kv> values, HeadRun<Kv> ahead, int64_t num_keys,
                                          float* out, int64_t out_stride, const LoadValue& load_value) {
  Vec sums[kHeads][kVectors];
#pragma GCC unroll 4
  for (int h = 0; h < kHeads; ++h) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sums[h][v] = load(out + h * out_stride + v * Vec::kWidth);
  }
  for (int64_t key = 0; key < num_keys; ++key) {
    prefetch_row<1>(ahead[key], kVectors * Vec::kWidth);
    const Kv* row = values[key];
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
    for (int v = 0; v < kVectors; ++v) store(out + h * out_stride + v * Vec::kWidth, sums[h][v]);
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

// What the query heads of an item have gathered: outputs [heads, rounded head_size], then of each head the highest
// score and the sum of the weights relative to it.
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
        heads_(params.num_q_heads),
        group_(params.num_q_heads / params.num_kv_heads),
        stride_(rounded(params.head_size)),
        run_keys_(params.block_size >= kRunKeys && kTileKeys % params.block_size == 0 ? params.block_size : kRunKeys),
        runs_ahead_(std::max<int64_t>(1, kBytesAhead / (run_keys_ * params.head_size * sizeof(Kv)))),
        scale_(params.scale, params.softcap) {
    const int64_t sums = HeadSums::size(heads_, params.head_size);
    ScratchParts parts(thread_scratch(heads_ * (stride_ + kTileKeys) + sums + 3 * ScratchParts::kLine));
    q_ = parts.take(heads_ * stride_);
    scores_ = parts.take(heads_ * kTileKeys);
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
  using Tile = KeyTile<Kv, kTileKeys, kKeys>;  // of the first KV head: the others lie a head_stride further on each

  HeadSums head_sums(float* memory) const { return {memory, heads_, params_.head_size}; }

  HeadSums partial(int64_t index) const {
    return head_sums(partials_ + index * HeadSums::size(heads_, params_.head_size));
  }

  void load_query(const AttentionItem& item) {
    with_element_type(params_.dtype, [&](auto element) {
      using T = decltype(element);
      for (int64_t h = 0; h < heads_; ++h) {
        const Vec scale = broadcast(scale_.product * scale_of(params_.k_cache, h / group_));
        const T* from =
            static_cast<const T*>(params_.q.data) + item.request * params_.q.token_stride + h * params_.q.head_stride;
        float* to = q_ + h * stride_;
        for_each_vector(
            params_.head_size, [&](int64_t d) { store(to + d, load(from + d) * scale); },
            [&](int64_t d, int rest) { store(to + d, load_first(from + d, rest) * scale); });
      }
    });
  }

  void attend_tile(const HeadSums& sums, const Tile& tile, const Tile& next) {
    const int64_t k_stride = params_.k_cache.head_stride, v_stride = params_.v_cache.head_stride;
    for_each_run(tile, {tile.keys, k_stride}, {tile.values, v_stride},
                 [&]<int kHeads>(int64_t h, int32_t key, int32_t count, HeadRun<Kv> keys, HeadRun<Kv> ahead) {
                   score_keys<kHeads>(q_ + h * stride_, stride_, keys, ahead, count, params_.head_size,
                                      scores_ + h * kTileKeys + key);
                 });
    for (int64_t h = 0; h < heads_; ++h) {
      const Vec decay = broadcast(
          update_softmax(scores_ + h * kTileKeys, tile.count, scale_.softcap, sums.highest + h, sums.total + h));
      for (float* out = sums.out + h * stride_; out < sums.out + (h + 1) * stride_; out += Vec::kWidth) {
        store(out, load(out) * decay);
      }
    }
    for_each_run(tile, {tile.values, v_stride}, {next.keys, k_stride},
                 [&]<int kHeads>(int64_t h, int32_t key, int32_t count, HeadRun<Kv> values, HeadRun<Kv> ahead) {
                   add_outputs<kHeads>(scores_ + h * kTileKeys + key, values, ahead, count, sums.out + h * stride_);
                 });
  }

  // K or V of a tile.
  struct TileRows {
    const Kv* const* first_head;
    int64_t head_stride;

    HeadRun<Kv> run(int64_t kv_head, int64_t key) const { return {first_head + key, kv_head * head_stride}; }
  };

  // Calls body.operator()<heads>(h, key, count, rows, ahead) for the runs of `now`, in order. h is the first of some
  // query heads of the run's KV head, `key` the first of `count` of the tile, and `ahead` a run further on, maybe one
  // of `then`.
  template <class Body>
  void for_each_run(const Tile& tile, const TileRows& now, const TileRows& then, const Body& body) const {
    const int64_t kv_heads = params_.num_kv_heads, last_of_then = kTileKeys / run_keys_ * kv_heads - 1;
    const int64_t num_runs = (tile.count + run_keys_ - 1) / run_keys_ * kv_heads;
    for (int64_t run = 0; run < num_runs; ++run) {
      const int64_t kv_head = run % kv_heads;
      const int32_t key = static_cast<int32_t>(run / kv_heads) * run_keys_;
      const int64_t next = run + runs_ahead_, of_then = std::min(next - num_runs, last_of_then);
      const HeadRun<Kv> ahead = next < num_runs ? now.run(next % kv_heads, next / kv_heads * run_keys_)
                                                : then.run(of_then % kv_heads, of_then / kv_heads * run_keys_);
      for_each_head_block(kv_head * group_, (kv_head + 1) * group_, [&]<int kHeads>(int64_t h) {
        body.template operator()<kHeads>(h, key, std::min(run_keys_, tile.count - key), now.run(kv_head, key), ahead);
      });
    }
  }

  template <int kHeads>
  void add_outputs(const float* weights, HeadRun<Kv> values, HeadRun<Kv> ahead, int64_t count, float* out) const {
    const auto whole = [](const Kv* value) { return load(value); };
    const auto add = [&]<int kVectors>(int64_t d, const auto& load_value) {
      add_values<kHeads, kVectors, Kv>(weights, {values.first_head, values.offset + d},
                                       {ahead.first_head, ahead.offset + d}, count, out + d, stride_, load_value);
    };
    int64_t d = 0;
    for (; d + kMaxVectors * Vec::kWidth <= params_.head_size; d += kMaxVectors * Vec::kWidth) {
      add.template operator()<kMaxVectors>(d, whole);
    }
    for (; d + Vec::kWidth <= params_.head_size; d += Vec::kWidth) add.template operator()<1>(d, whole);
    if (const int rest = static_cast<int>(params_.head_size - d); rest > 0) {
      add.template operator()<1>(d, [rest](const Kv* value) { return load_first(value, rest); });
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
    with_element_type(params_.dtype, [&](auto element) {
      using T = decltype(element);
      for (int64_t h = 0; h < heads_; ++h) {
        T* to =
            static_cast<T*>(params_.out.data) + item.request * params_.out.token_stride + h * params_.out.head_stride;
        const float* from = sums.out + h * stride_;
        const Vec share = broadcast(scale_of(params_.v_cache, h / group_) / sums.total[h]);
        for_each_vector(
            params_.head_size, [&](int64_t d) { store(to + d, load(from + d) * share); },
            [&](int64_t d, int rest) { store_first(to + d, load(from + d) * share, rest); });
      }
    });
  }

  const DecodeAttentionParams& params_;
  float* partials_;
  int64_t heads_;   // of q
  int64_t group_;   // of them that share a KV head
  int64_t stride_;  // floats of a row of q and of the outputs
  int32_t run_keys_;
  int64_t runs_ahead_;
  ScoreScale scale_;
  float* q_;
  float* scores_;
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

// An item is a request with all its heads.
std::vector<AttentionItem> items_of(const DecodeAttentionParams& params) {
  std::vector<AttentionItem> items;
  items.reserve(params.num_requests);
  for (int32_t request = 0; request < params.num_requests; ++request) {
    const int32_t length = params.context_lens[request];
    if (length == 0) continue;
    items.push_back({request, 0, 0, 1, first_visible_key(length - 1, params.window), length});
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
    const int64_t key_bytes = 2 * params.num_kv_heads * params.head_size * static_cast<int64_t>(sizeof(Kv));
    const AttentionSchedule schedule(items_of(params), std::max<int64_t>(262'144 / key_bytes, 1), kRunKeys);
    const auto partials = std::make_unique_for_overwrite<float[]>(schedule.num_partials() *
                                                                  HeadSums::size(params.num_q_heads, params.head_size));
    schedule.run([&] { return Worker<Kv>(params, partials.get()); });
  });
}

}  // namespace cudaprefill::cpu::CUDAPREFILL_ISA
