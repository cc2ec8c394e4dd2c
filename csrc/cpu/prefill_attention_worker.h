// Causal attention of new tokens over the paged cache, tile by tile, with an online softmax.
//
// The rows of an item (each new token in each query head of one KV head) lie in the lanes of the vectors, for scores,
// weights and outputs alike:
//
//     scores [key][row]  =  sum over d of  K[key][d] * Qt[d][row]          Qt: q transposed once an item
//     Ot     [d][row]   +=  sum over key of V[key][d] * weights[key][row]
//
// So K and V are only read as single floats, broadcast from where they lie in their blocks, and are shared by the heads
// of a group; the softmax never reduces across lanes; and a row's mask is a comparison with its position.
//
// `Products` computes these two, in float32 (prefill_attention_float.h) or from bfloat16
// (prefill_attention_bfloat16.h), and lays out what they multiply.
//
// A panel is the rows that one register block holds. For one tile of keys each panel computes its scores, updates its
// softmax and adds to its output while both lie in the nearest cache:
//
//               tile 0    tile 1    tile 2
//     panel 0   ########  ######/                 #  computed
//     panel 1   ########  ########  //            /  masked: seen by the last row of the panel, but not by the first
//     panel 2   ########  ########  ###///           beyond: skipped
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "csrc/cpu/attention_checks.h"
#include "csrc/cpu/attention_keys.h"
#include "csrc/cpu/attention_schedule.h"
#include "csrc/cpu/attention_scratch.h"
#include "csrc/cpu/cache_scales.h"
#include "csrc/cpu/prefill_attention_tile.h"

namespace cudaprefill::cpu::CUDAPREFILL_ISA {

constexpr int kItemPanels = 8;  // that share what is done once a tile

// What the rows of an item have gathered: of each panel Ot [head_size, rows], then of each row the highest score and
// the sum of the weights relative to it.
class RowSums {
 public:
  static int64_t size(int64_t max_rows, int64_t head_size) { return max_rows * (head_size + 2); }

  RowSums(float* memory, int64_t max_rows, int64_t head_size)
      : out_(memory), highest_(memory + max_rows * head_size), total_(highest_ + max_rows), head_size_(head_size) {}

  float* out(int64_t first_row) const { return out_ + first_row * head_size_; }
  float* highest(int64_t first_row) const { return highest_ + first_row; }
  float* total(int64_t first_row) const { return total_ + first_row; }

  void clear(int64_t rows) const {
    std::fill_n(out_, rows * head_size_, 0.0f);
    std::fill_n(highest_, rows, kNoScore);
    std::fill_n(total_, rows, 0.0f);
  }

 private:
  float* out_;
  float* highest_;
  float* total_;
  int64_t head_size_;
};

inline int64_t group_size(const PrefillAttentionParams& params) { return params.num_q_heads / params.num_kv_heads; }

inline int64_t tokens_per_item(const PrefillAttentionParams& params) {
  return std::max<int64_t>(kItemPanels * kPanelRows / group_size(params), 1);
}

inline int64_t rounded_rows(int64_t rows) { return (rows + Vec::kWidth - 1) / Vec::kWidth * Vec::kWidth; }

// Rows of an item, with those that fill its last vector.
inline int64_t max_rows(const PrefillAttentionParams& params) {
  return rounded_rows(tokens_per_item(params) * group_size(params));
}

template <class T>
CUDAPREFILL_INLINE Vec load_dims(const T* from, int count) {
  return count == Vec::kWidth ? load(from) : load_first(from, count);
}

template <class T>
CUDAPREFILL_INLINE void store_dims(T* to, Vec v, int count) {
  return count == Vec::kWidth ? store(to, v) : store_first(to, v, count);
}

template <class Products>
class PrefillWorker {
 public:
  // `partials` [num_partials, RowSums::size()] is shared by the workers of a call.
  PrefillWorker(const PrefillAttentionParams& params, float* partials)
      : params_(params),
        partials_(partials),
        group_(group_size(params)),
        max_rows_(max_rows(params)),
        scale_(params.scale, params.softcap),
        parts_(thread_scratch(scratch_size(params))),
        products_(&parts_, params.head_size) {
    q_ = parts_.take(max_rows_ * params.head_size);
    row_offset_ = parts_.take(max_rows_);
    scores_ = parts_.take(kTileKeys * kPanelRows);
    whole_ = parts_.take(RowSums::size(max_rows_, params.head_size));
  }

  void attend(const AttentionPiece& piece) {
    const AttentionItem& item = piece.item;
    load_queries(item);
    const bool is_whole = piece.partial == AttentionPiece::kWhole;
    const RowSums sums = is_whole ? row_sums(whole_) : partial(piece.partial);
    sums.clear(rounded_rows(num_rows(item)));
    for_each_tile<Tile>(params_, item,
                        [&](const Tile& tile, const Tile& next) { attend_tile(item, sums, tile, next); });
    if (is_whole) write_out(item, sums);
  }

  void merge(const AttentionItem& item, int32_t first_partial, int32_t num_partials) {
    const RowSums sums = partial(first_partial);
    for (int32_t i = 1; i < num_partials; ++i) add_partial(item, sums, partial(first_partial + i));
    write_out(item, sums);
  }

 private:
  using Tile = typename Products::Tile;

  // The part of the next tile that one of the panels brings into the second cache, a little with each block of keys:
  // all at once, it would hold up what the products themselves read.
  struct TilePart {
    const Tile& tile;
    int64_t part, num_parts;

    void prefetch(int64_t key, int64_t num_keys, int64_t head_size) const {
      const int64_t end = (part * kTileKeys + key + num_keys) / num_parts;
      for (int64_t j = (part * kTileKeys + key) / num_parts; j < end; ++j) {
        prefetch_row<2>(tile.keys[j], head_size);
        prefetch_row<2>(tile.values[j], head_size);
      }
    }
  };

  static int64_t scratch_size(const PrefillAttentionParams& params) {
    const int64_t rows = max_rows(params);
    return rows * params.head_size + rows + kTileKeys * kPanelRows + RowSums::size(rows, params.head_size) +
           Products::scratch_size(params.head_size) + 4 * ScratchParts::kLine;
  }

  int64_t num_rows(const AttentionItem& item) const { return item.num_tokens * group_; }

  RowSums row_sums(float* memory) const { return {memory, max_rows_, params_.head_size}; }

  RowSums partial(int64_t index) const {
    return row_sums(partials_ + index * RowSums::size(max_rows_, params_.head_size));
  }

  // Row `row` of an item in q or out.
  template <class T>
  T* head_row(const HeadRows& rows, const AttentionItem& item, int64_t row) const {
    return static_cast<T*>(rows.data) +
           (params_.cu_seqlens_q[item.request] + item.first_token + row / group_) * rows.token_stride +
           (item.kv_head * group_ + row % group_) * rows.head_stride;
  }

  // The position of the item's first token.
  int32_t base_position(const AttentionItem& item) const {
    const int32_t new_tokens = params_.cu_seqlens_q[item.request + 1] - params_.cu_seqlens_q[item.request];
    return params_.context_lens[item.request] - new_tokens + item.first_token;
  }

  // Calls body(panel's first row, its number of vectors) for each panel of an item.
  template <class Body>
  void for_each_panel(const AttentionItem& item, const Body& body) const {
    const int64_t rows = rounded_rows(num_rows(item));
    for (int64_t first = 0; first < rows; first += kPanelRows) {
      body(first, static_cast<int>(std::min<int64_t>(rows - first, kPanelRows)) / Vec::kWidth);
    }
  }

  // Calls body(first row of the vector, first row of its panel, rows of the panel) for each vector of rows.
  template <class Body>
  void for_each_vector_of_rows(const AttentionItem& item, const Body& body) const {
    for_each_panel(item, [&](int64_t panel_row, int vectors) {
      for (int v = 0; v < vectors; ++v) body(panel_row + v * Vec::kWidth, panel_row, vectors * Vec::kWidth);
    });
  }

  // Qt of each panel, scaled. The rows that fill the last vector are zeros at the position of the last token.
  void load_queries(const AttentionItem& item) {
    with_element_type(params_.dtype, [&](auto element) {
      using T = decltype(element);
      const Vec scale = broadcast(scale_.product * scale_of(params_.k_cache, item.kv_head));
      for_each_vector_of_rows(item, [&](int64_t first_row, int64_t panel_row, int64_t panel_rows) {
        for (int64_t i = 0; i < Vec::kWidth; ++i) {
          row_offset_[first_row + i] = static_cast<float>(std::min(first_row + i, num_rows(item) - 1) / group_);
        }
        const int64_t rows = std::min<int64_t>(Vec::kWidth, num_rows(item) - first_row);
        const T* from[Vec::kWidth];
        for (int64_t i = 0; i < rows; ++i) from[i] = head_row<T>(params_.q, item, first_row + i);
        float* to = q_ + panel_row * params_.head_size + (first_row - panel_row);
        for (int64_t d = 0; d < params_.head_size; d += Vec::kWidth) {
          const int dims = static_cast<int>(std::min<int64_t>(Vec::kWidth, params_.head_size - d));
          Vec square[Vec::kWidth];
          for (int64_t i = 0; i < Vec::kWidth; ++i) {
            square[i] = i >= rows ? zero() : load_dims(from[i] + d, dims) * scale;
          }
          transpose(square);
          Products::store_queries(to, panel_rows, d, dims, square);
        }
      });
    });
  }

  void attend_tile(const AttentionItem& item, const RowSums& sums, const Tile& tile, const Tile& next) {
    const int32_t first = tile.first, end = tile.first + tile.count;
    products_.set_tile(tile);
    const int32_t base = base_position(item);
    for_each_panel(item, [&](int64_t first_row, int vectors) {
      const int32_t first_token = static_cast<int32_t>(first_row / group_);
      const int32_t last_token =
          static_cast<int32_t>(std::min(first_row + vectors * Vec::kWidth, num_rows(item)) - 1) / group_;
      int32_t from = std::max(first, first_visible_key(base + first_token, params_.window));
      from -= (from - first) % Products::kKeysOfWeight;
      const int32_t to = std::min(end, base + last_token + 1);
      if (from >= to) return;
      const TileMask mask{
          .causal = end - 1 > base + first_token,
          .window = from < first_visible_key(base + last_token, params_.window),
          .first_key = static_cast<float>(from - base),
          .window_size = static_cast<float>(params_.window),
          .row_offset = row_offset_ + first_row,
      };
      const auto attend = [&]<int kVectors>() {
        attend_panel<kVectors>(sums, first_row, from - first, to - from, mask,
                               {next, first_row / kPanelRows, (num_rows(item) + kPanelRows - 1) / kPanelRows});
      };
      switch (vectors) {
        case 1:
          return attend.template operator()<1>();
        case 2:
          return attend.template operator()<2>();
        default:
          return attend.template operator()<kPanelVectors>();
      }
    });
  }

  // The rows of a panel against the keys first_key .. first_key + num_keys - 1 of the tile.
  template <int kVectors>
  void attend_panel(const RowSums& sums, int64_t first_row, int64_t first_key, int64_t num_keys, const TileMask& mask,
                    const TilePart& to_prefetch) {
    constexpr int kRows = kVectors * Vec::kWidth;
    const int64_t head_size = params_.head_size;
    const float* q = q_ + first_row * head_size;
    float* running_highest = sums.highest(first_row);
    float* running_total = sums.total(first_row);
    Vec highest[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) highest[v] = load(running_highest + v * Vec::kWidth);
    for (int64_t j = 0; j < num_keys; j += kBlock) {
      to_prefetch.prefetch(j, kBlock, head_size);
      products_.template score_block<kVectors>(q, first_key + j, scores_ + j * kRows, highest);
    }
    if (mask.causal || mask.window || scale_.softcap > 0) {
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) highest[v] = load(running_highest + v * Vec::kWidth);
      cap_and_mask<kVectors>(scores_, num_keys, mask, scale_.softcap, highest);
    }

    Vec decay[kVectors];  // what the sums up to now must be multiplied by
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      decay[v] = exp2(load(running_highest + v * Vec::kWidth) - highest[v]);
      store(running_highest + v * Vec::kWidth, highest[v]);
    }
    float* out = sums.out(first_row);
    const auto add_output = [&]<int kDims>(int64_t d, const auto& weights) {
      return products_.template output_block<kVectors, kDims>(weights, first_key, num_keys, d, decay, out + d * kRows);
    };
    const ScoresToWeights<kVectors, Products> scores(scores_, num_keys, running_highest);
    const bool has_block = head_size >= kFirstBlock;
    const auto weighed = has_block ? add_output.template operator()<kFirstBlock>(0, scores)
                                   : add_output.template operator()<1>(0, scores);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      float* at = running_total + v * Vec::kWidth;
      store(at, fma(load(at), decay[v], weighed.sum(v)));
    }
    const StoredWeights<kVectors> weights(scores_);
    int64_t d = has_block ? kFirstBlock : 1;
    for (; d + kBlock <= head_size; d += kBlock) add_output.template operator()<kBlock>(d, weights);
    if (d + kFirstBlock <= head_size) {
      add_output.template operator()<kFirstBlock>(d, weights);
      d += kFirstBlock;
    }
    for (; d < head_size; ++d) add_output.template operator()<1>(d, weights);
  }

  // sums += other, both brought to the higher of their highest scores. One that saw no key weighs nothing.
  void add_partial(const AttentionItem& item, const RowSums& sums, const RowSums& other) const {
    for_each_panel(item, [&](int64_t first_row, int vectors) {
      for (int v = 0; v < vectors; ++v) {
        const int64_t row = first_row + v * Vec::kWidth;
        const Vec own_highest = load(sums.highest(row)), other_highest = load(other.highest(row));
        const Vec highest = max(own_highest, other_highest);
        const Vec own_weight = exp2(own_highest - highest), other_weight = exp2(other_highest - highest);
        store(sums.highest(row), highest);
        store(sums.total(row), fma(load(sums.total(row)), own_weight, load(other.total(row)) * other_weight));
        float* out = sums.out(first_row) + v * Vec::kWidth;
        const float* added = other.out(first_row) + v * Vec::kWidth;
        for (int64_t d = 0; d < params_.head_size; ++d, out += vectors * Vec::kWidth, added += vectors * Vec::kWidth) {
          store(out, fma(load(out), own_weight, load(added) * other_weight));
        }
      }
    });
  }

  void write_out(const AttentionItem& item, const RowSums& sums) const {
    const Vec value_scale = broadcast(scale_of(params_.v_cache, item.kv_head));
    with_element_type(params_.dtype, [&](auto element) {
      using T = decltype(element);
      for_each_vector_of_rows(item, [&](int64_t first_row, int64_t panel_row, int64_t panel_rows) {
        const Vec share = value_scale / load(sums.total(first_row));
        const int64_t rows = std::min<int64_t>(Vec::kWidth, num_rows(item) - first_row);
        T* to[Vec::kWidth];
        for (int64_t i = 0; i < rows; ++i) to[i] = head_row<T>(params_.out, item, first_row + i);
        const float* from = sums.out(panel_row) + (first_row - panel_row);
        for (int64_t d = 0; d < params_.head_size; d += Vec::kWidth) {
          const int dims = static_cast<int>(std::min<int64_t>(Vec::kWidth, params_.head_size - d));
          Vec square[Vec::kWidth];
          for (int i = 0; i < Vec::kWidth; ++i) {
            square[i] = i >= dims ? zero() : load(from + (d + i) * panel_rows) * share;
          }
          transpose(square);
          for (int64_t i = 0; i < rows; ++i) store_dims(to[i] + d, square[i], dims);
        }
      });
    });
  }

  const PrefillAttentionParams& params_;
  float* partials_;
  int64_t group_, max_rows_;
  ScoreScale scale_;
  ScratchParts parts_;
  Products products_;
  float* q_;
  float* row_offset_;
  float* scores_;
  float* whole_;
};

inline std::vector<AttentionItem> items_of(const PrefillAttentionParams& params) {
  std::vector<AttentionItem> items;
  const int32_t step = static_cast<int32_t>(tokens_per_item(params));
  for (int32_t request = 0; request < params.num_requests; ++request) {
    const int32_t new_tokens = params.cu_seqlens_q[request + 1] - params.cu_seqlens_q[request];
    const int32_t cached = params.context_lens[request] - new_tokens;
    for (int32_t kv_head = 0; kv_head < params.num_kv_heads; ++kv_head) {
      for (int32_t first = 0; first < new_tokens; first += step) {
        const int32_t tokens = std::min(step, new_tokens - first);
        items.push_back({request, kv_head, first, tokens, first_visible_key(cached + first, params.window),
                         cached + first + tokens});
      }
    }
  }
  return items;
}

template <class Products>
void run_prefill_attention(const PrefillAttentionParams& params) {
  check_values(params);
  // A share of about 20 microseconds is worth waking a thread for.
  const int64_t cost_of_share = std::max<int64_t>(1'000'000 / (group_size(params) * params.head_size), 1);
  const AttentionSchedule schedule(items_of(params), cost_of_share, kTileKeys);
  const int64_t partial_size = RowSums::size(max_rows(params), params.head_size);
  const auto partials = std::make_unique_for_overwrite<float[]>(schedule.num_partials() * partial_size);
  schedule.run([&] { return PrefillWorker<Products>(params, partials.get()); });
}

}  // namespace cudaprefill::cpu::CUDAPREFILL_ISA
