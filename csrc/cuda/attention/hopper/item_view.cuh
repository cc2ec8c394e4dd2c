// An item of the plan as the Hopper prefill sees it, and the loop over the items of a thread block.
#pragma once

#include <cuda_runtime.h>

#include <ptx/memory.cuh>

#include "csrc/cuda/attention/hopper/operand_tile.cuh"
#include "csrc/cuda/attention/prefill_launch.h"

namespace cudaprefill {

// The part of an item that all its rows share.
struct ItemView {
  int work;  // (item, KV head) of the plan
  PrefillItem item;
  int kv_head;
  int first_token, num_rows;  // of the request: its first row of q, and its rows of the tile's numbering
  int position_of_token_0;
  int first_visible;  // of any row

  __device__ static ItemView of(const PrefillLaunch& launch, int work) {
    const PrefillAttentionParams& params = launch.op;
    const int index = work / params.num_kv_heads;
    const int4 head = ptx::load_global(reinterpret_cast<const int4*>(launch.items + index));
    ItemView view;
    view.work = work;
    view.item = {head.x, head.y, head.z, head.w, ptx::load_global(&launch.items[index].part), {}};
    view.kv_head = work % params.num_kv_heads;
    view.first_token = ptx::load_global(params.cu_seqlens_q + view.item.request);
    const int query_len = ptx::load_global(params.cu_seqlens_q + view.item.request + 1) - view.first_token;
    view.position_of_token_0 = ptx::load_global(params.context_lens + view.item.request) - query_len;
    view.num_rows = query_len * launch.group;
    const int first_position = view.position_of_token_0 + view.item.first_row / launch.group;
    view.first_visible = params.window > 0 ? max(0, first_position - params.window + 1) : 0;
    return view;
  }

  // Whether rows [key, key + rows) are part of what the tile sees: wholly, or at all.
  __device__ __forceinline__ bool has_all(int key, int rows) const {
    return key >= first_visible && key + rows <= item.last_key;
  }
  __device__ __forceinline__ bool has_any(int key, int rows) const {
    return key + rows > first_visible && key < item.last_key;
  }
  // Whether a page of the tile at `key` is there in part.
  __device__ __forceinline__ bool has_partial_page(int key, int keys) const {
    const bool at_the_beginning = first_visible > key && first_visible < key + keys && first_visible % kPageRows != 0;
    const bool at_the_end = item.last_key > key && item.last_key < key + keys && item.last_key % kPageRows != 0;
    return at_the_beginning || at_the_end;
  }
};

// Calls visit(view) for every item of this thread block, by every thread.
template <class Visit>
__device__ __forceinline__ void for_each_item(const PrefillLaunch& launch, Visit visit) {
  const auto num_work = [&] { return ptx::load_global(&launch.counts->num_items) * launch.op.num_kv_heads; };
  for (int work = blockIdx.x; work < num_work(); work += gridDim.x) visit(ItemView::of(launch, work));
}

}  // namespace cudaprefill
