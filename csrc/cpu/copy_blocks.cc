#include <cstring>
#include <stdexcept>
#include <string>

#include "csrc/cpu/kernels.h"
#include "csrc/cpu/parallel.h"

namespace cudaprefill::cpu {
namespace {

void copy_head(const CopyBlocksParams& params, const PagedCache& cache, int64_t head, int64_t from, int64_t to) {
  const int64_t bytes = element_bytes(params.kv_dtype);
  char* data = static_cast<char*>(cache.data) + head * cache.head_stride * bytes;
  const bool slots_adjoin = cache.slot_stride == params.head_size;
  const int64_t pieces = slots_adjoin ? 1 : params.block_size;
  const int64_t piece_bytes = (slots_adjoin ? params.block_size : 1) * params.head_size * bytes;
  for (int64_t piece = 0; piece < pieces; ++piece) {
    std::memcpy(data + (to * cache.block_stride + piece * cache.slot_stride) * bytes,
                data + (from * cache.block_stride + piece * cache.slot_stride) * bytes, piece_bytes);
  }
}

}  // namespace

void copy_blocks(const CopyBlocksParams& params) {
  const int64_t num_blocks = params.k_cache.num_blocks;
  for (int64_t i = 0; i < 2 * params.num_pairs; ++i) {
    if (params.block_pairs[i] < 0 || params.block_pairs[i] >= num_blocks) {
      throw std::out_of_range("block_pairs[" + std::to_string(i / 2) + "] holds block " +
                              std::to_string(params.block_pairs[i]) + ", but the cache has " +
                              std::to_string(num_blocks) + " blocks");
    }
  }
  // Heads side by side, pairs in order: a block may be the destination of one pair and the source of a later one.
  parallel_for(params.num_kv_heads, 1, [&](int64_t first, int64_t last) {
    for (int64_t i = 0; i < params.num_pairs; ++i) {
      const int64_t from = params.block_pairs[2 * i], to = params.block_pairs[2 * i + 1];
      if (from == to) continue;
      for (int64_t head = first; head < last; ++head) {
        copy_head(params, params.k_cache, head, from, to);
        copy_head(params, params.v_cache, head, from, to);
      }
    }
  });
}

}  // namespace cudaprefill::cpu
