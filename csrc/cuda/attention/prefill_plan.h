// The plan of a prefill: which tiles of query rows there are, how their keys are split, and in what order they run.
//
// Lengths live on the device, so the plan is made there, by one thread block ahead of the attention kernel; the host
// needs bounds only. A tile is `rows` rows of one request and one KV head. Its rows count (token, query head of the
// group) pairs, token by token:
//
//     row 0: token 0, head 0 | row 1: token 0, head 1 | ... | row group: token 1, head 0 | ...
//
// so any group size fills the tiles, and one loaded key serves all heads of its group. An item is a tile, or a part of
// the keys of a tile where the whole would outlast the even share of a thread block.
//
// A request of few rows, a decode above all, is a narrow tile where the kernel has these: the rows of one warpgroup,
// and the warpgroups of a thread block share out the keys in place of the rows. Tiles of both classes are in one queue.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace cudaprefill {

struct alignas(16) PrefillItem {
  int32_t request;
  int32_t first_row;  // of the request's rows
  int32_t first_key, last_key;
  int32_t part;    // where the partial result goes; kWhole for none
  int32_t narrow;  // whether the tile is a narrow one
  int32_t unused[2];

  static constexpr int32_t kWhole = -1;
};

// A tile whose keys were split: parts [first_part, first_part + count).
struct alignas(16) SplitTile {
  int32_t request, first_row, first_part, count;
};

struct PlanCounts {
  int32_t num_items, num_split_tiles;
};

struct PrefillPlanParams {
  const int32_t* cu_seqlens_q;
  const int32_t* context_lens;
  int32_t num_requests, num_kv_heads, group, window;
  int32_t rows, keys;   // of a tile
  int32_t narrow_rows;  // requests of at most so many are narrow tiles; 0 for none
  int32_t narrow_keys;  // that a thread block takes at once of a narrow tile
  int32_t num_blocks;   // thread blocks that run the plan
  PrefillItem* items;
  SplitTile* split_tiles;
  PlanCounts* counts;
};

// How many items, and parts of split tiles, there can be. With c tiles of keys in all for one KV head and an even share
// s >= c * num_kv_heads / num_blocks: the parts beyond one a tile are at most c / s, and a split tile has at least one
// such part more than it would have had.
struct PrefillPlanBounds {
  int64_t tiles, items, parts;

  static PrefillPlanBounds of(int64_t num_tokens, int num_requests, int num_kv_heads, int group, int rows,
                              int num_blocks) {
    PrefillPlanBounds bounds;
    bounds.tiles = num_tokens * group / rows + num_requests;
    const int64_t extra_parts = num_blocks / num_kv_heads + 1;
    bounds.items = bounds.tiles + extra_parts;
    bounds.parts = 2 * extra_parts;
    return bounds;
  }
};

// One thread block. Its results are complete when the next kernel of the stream begins.
void plan_prefill(const PrefillPlanParams& params, cudaStream_t stream);

}  // namespace cudaprefill
