// A mixed step has its decodes first, one row each, and then its chunks: what either kernel is asked for its part.
#pragma once

#include "csrc/ops/params.h"

namespace cudaprefill {

inline DecodeAttentionParams decodes_of(const PrefillAttentionParams& step, int num_decodes) {
  DecodeAttentionParams params{};
  params.q = step.q;
  params.out = step.out;
  params.k_cache = step.k_cache;
  params.v_cache = step.v_cache;
  params.block_table = step.block_table;
  params.context_lens = step.context_lens;
  params.block_table_stride = step.block_table_stride;
  params.max_blocks = step.max_blocks;
  params.num_requests = num_decodes;
  params.num_q_heads = step.num_q_heads;
  params.num_kv_heads = step.num_kv_heads;
  params.head_size = step.head_size;
  params.block_size = step.block_size;
  params.window = step.window;
  params.scale = step.scale;
  params.softcap = step.softcap;
  params.dtype = step.dtype;
  params.kv_dtype = step.kv_dtype;
  return params;
}

// `cu_seqlens_q` goes on counting from the first row of the step.
inline PrefillAttentionParams chunks_of(const PrefillAttentionParams& step, int num_decodes) {
  PrefillAttentionParams params = step;
  params.block_table += num_decodes * step.block_table_stride;
  params.cu_seqlens_q += num_decodes;
  params.context_lens += num_decodes;
  params.num_requests -= num_decodes;
  return params;
}

}  // namespace cudaprefill
