// An item of the plan as the Hopper prefill sees it, and the loop over the items of a thread block.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <ptx/memory.cuh>

#include "csrc/cuda/attention/hopper/operand_tile.cuh"
#include "csrc/cuda/attention/prefill_launch.h"

namespace cudaprefill {

// What all rows of an item share: the item itself, its KV head, and what the lengths of its request say.
struct ItemView {
  int request;
  int first_row;  // of the request's rows
  int first_key, last_key;
  int part;  // of a split tile; PrefillItem::kWhole for none
  int kv_head;
  int first_token, num_rows;  // of the request: its first row of q, and its rows by (token, head)
  int position_of_token_0;
  int first_visible;  // key, of any row
  int is_narrow;      // the consumers share out its keys, not its rows

  static constexpr uint32_t kBytes = 48;       // in shared memory
  static constexpr uint32_t kKeyScaleAt = 44;  // where a producer of Float8 leaves the scale of the keys

  __device__ static ItemView of(const PrefillLaunch& launch, const PrefillWork& work) {
    const PrefillAttentionParams& params = launch.op;
    const PrefillItem* item = launch.items + work.item;
    const int4 words = ptx::load_global(reinterpret_cast<const int4*>(item));
    ItemView view;
    view.request = words.x;
    view.first_row = words.y;
    view.first_key = words.z;
    view.last_key = words.w;
    const int4 more_words = ptx::load_global(reinterpret_cast<const int4*>(&item->part));
    view.part = more_words.x;
    view.is_narrow = more_words.y;
    view.kv_head = work.kv_head;
    view.first_token = ptx::load_global(params.cu_seqlens_q + view.request);
    const int query_len = ptx::load_global(params.cu_seqlens_q + view.request + 1) - view.first_token;
    view.position_of_token_0 = ptx::load_global(params.context_lens + view.request) - query_len;
    view.num_rows = query_len * launch.group;
    const int first_position = view.position_of_token_0 + view.first_row / launch.group;
    view.first_visible = params.window > 0 ? max(0, first_position - params.window + 1) : 0;
    return view;
  }

  // What the consumers are told after the last item.
  __device__ static ItemView none() { return {-1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}; }
  __device__ __forceinline__ bool is_none() const { return request < 0; }

  __device__ void store(uint32_t address) const {
    const auto four = [](int a, int b, int c, int d) {
      return uint4{static_cast<uint32_t>(a), static_cast<uint32_t>(b), static_cast<uint32_t>(c),
                   static_cast<uint32_t>(d)};
    };
    ptx::store_shared(address, four(request, first_row, first_key, last_key));
    ptx::store_shared(address + 16, four(part, kv_head, first_token, num_rows));
    ptx::store_shared(address + 32, four(position_of_token_0, first_visible, is_narrow, 0));
  }
  __device__ static ItemView load(uint32_t address) {
    uint4 a, b, c;
    ptx::load_shared(address, a);
    ptx::load_shared(address + 16, b);
    ptx::load_shared(address + 32, c);
    return {static_cast<int>(a.x), static_cast<int>(a.y), static_cast<int>(a.z), static_cast<int>(a.w),
            static_cast<int>(b.x), static_cast<int>(b.y), static_cast<int>(b.z), static_cast<int>(b.w),
            static_cast<int>(c.x), static_cast<int>(c.y), static_cast<int>(c.z)};
  }

  // Whether rows [key, key + rows) are part of what the tile sees: wholly, or at all.
  __device__ __forceinline__ bool has_all(int key, int rows) const {
    return key >= first_visible && key + rows <= last_key;
  }
  __device__ __forceinline__ bool has_any(int key, int rows) const {
    return key + rows > first_visible && key < last_key;
  }
  // Whether a page of the tile at `key` is there in part.
  __device__ __forceinline__ bool has_partial_page(int key, int keys) const {
    const bool at_the_beginning = first_visible > key && first_visible < key + keys && first_visible % kPageRows != 0;
    const bool at_the_end = last_key > key && last_key < key + keys && last_key % kPageRows != 0;
    return at_the_beginning || at_the_end;
  }
};

// Calls visit(view) for every item of this thread block, by every thread.
template <class Visit>
__device__ __forceinline__ void for_each_item(const PrefillLaunch& launch, Visit visit) {
  for (int i = blockIdx.x;; i += gridDim.x) {
    const int num_items = ptx::load_global(&launch.counts->num_items);
    if (i >= num_items * launch.op.num_kv_heads) return;
    visit(ItemView::of(launch, PrefillWork::of(launch, i, num_items)));
  }
}

}  // namespace cudaprefill
