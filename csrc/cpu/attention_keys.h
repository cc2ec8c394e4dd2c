// The rows of K or V of one tile of keys, found through the block table.
#pragma once

#include <algorithm>
#include <cstdint>

#include "csrc/cpu/attention_schedule.h"
#include "csrc/cpu/simd.h"
#include "csrc/ops/params.h"

namespace cudaprefill::cpu::CUDAPREFILL_ISA {

// K or V of one request and KV head.
struct PagedHead {
  const PagedCache& cache;
  const int32_t* blocks;  // the request's row of the block table
  int32_t block_size;
  int32_t kv_head;
};

template <class Params>
PagedHead paged_head(const Params& params, const PagedCache& cache, const AttentionItem& item) {
  return {cache, params.block_table + item.request * params.block_table_stride, params.block_size, item.kv_head};
}

// rows[0 .. count - 1] = where the keys first .. first + count - 1 lie. The rest up to rows[size - 1] repeats the last,
// so that a block of keys may reach past it: slots that hold no key are left alone.
template <class Kv>
void find_rows(const PagedHead& head, int32_t first, int32_t count, const Kv** rows, int32_t size) {
  const int64_t stride = head.cache.slot_stride;
  const Kv* last = nullptr;
  int32_t block = first / head.block_size;
  int32_t slot = first % head.block_size;
  for (int32_t done = 0; done < count; ++block, slot = 0) {
    const Kv* row = static_cast<const Kv*>(head.cache.data) + head.blocks[block] * head.cache.block_stride +
                    head.kv_head * head.cache.head_stride + slot * stride;
    const int32_t run = std::min(head.block_size - slot, count - done);
    for (int32_t i = 0; i < run; ++i) rows[done + i] = row + i * stride;
    last = row + (run - 1) * stride;
    done += run;
  }
  std::fill(rows + count, rows + size, last);
}

// The rows of a tile of at most kKeys keys. A block of kBlock keys may begin at any of them.
template <class Kv, int kKeys, int kBlock>
struct KeyTile {
  static constexpr int kSize = kKeys + kBlock - 1;

  int32_t first, count;
  const Kv* keys[kSize];
  const Kv* values[kSize];

  template <class Params>
  void find(const Params& params, const AttentionItem& item, int32_t first_key) {
    first = first_key;
    count = std::min(kKeys, item.end_key - first_key);
    find_rows(paged_head(params, params.k_cache, item), first, count, keys, kSize);
    find_rows(paged_head(params, params.v_cache, item), first, count, values, kSize);
  }
};

// Calls body(tile, next) for the tiles of an item in order. `next` is what to prefetch; after the last it is the last.
template <class Tile, class Params, class Body>
void for_each_tile(const Params& params, const AttentionItem& item, const Body& body) {
  Tile tiles[2];
  tiles[0].find(params, item, item.first_key);
  for (int current = 0;; current ^= 1) {
    const int32_t end = tiles[current].first + tiles[current].count;
    if (end == item.end_key) return body(tiles[current], tiles[current]);
    tiles[current ^ 1].find(params, item, end);
    body(tiles[current], tiles[current ^ 1]);
  }
}

// Brings a row, or a part of it, into the cache of that level while others are worked on: blocks lie anywhere, so no
// hardware can foresee them.
template <int kLevel, class Kv>
CUDAPREFILL_INLINE void prefetch_row(const Kv* row, int64_t count) {
  constexpr int64_t kLine = 64 / sizeof(Kv);
  for (int64_t i = 0; i < count; i += kLine) __builtin_prefetch(row + i, 0, 4 - kLevel);
}

// Float32 copies of `count` rows, one after the other in `to` [count, head_size].
template <class Kv>
void convert_rows(const Kv* const* rows, int32_t count, int32_t head_size, float* to) {
  for (int32_t i = 0; i < count; ++i, to += head_size) {
    const Kv* from = rows[i];
    for_each_vector(
        head_size, [&](int64_t d) { store(to + d, load(from + d)); },
        [&](int64_t d, int rest) { store_first(to + d, load_first(from + d, rest), rest); });
  }
}

}  // namespace cudaprefill::cpu::CUDAPREFILL_ISA
