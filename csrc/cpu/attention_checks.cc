#include "csrc/cpu/attention_checks.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "csrc/cpu/cache_scales.h"

namespace cudaprefill::cpu {
namespace {

using std::to_string;

std::string entry(const char* name, int64_t index) { return std::string(name) + "[" + to_string(index) + "]"; }

// Entries past the context may hold anything, and so may those before the window of the first query.
template <class Params>
void check_context(const Params& params, int64_t request, int32_t first_position) {
  const int64_t length = params.context_lens[request];
  const int64_t capacity = params.max_blocks * params.block_size;
  if (length < 0 || length > capacity) {
    throw std::out_of_range(entry("context_lens", request) + " is " + to_string(length) +
                            ", but block_table holds at most " + to_string(capacity) + " slots a request");
  }
  const int32_t* blocks = params.block_table + request * params.block_table_stride;
  const int64_t first = first_visible_key(first_position, params.window) / params.block_size;
  const int64_t end = (length + params.block_size - 1) / params.block_size;
  uint32_t highest = 0;  // negative ids are the highest
  for (int64_t i = first; i < end; ++i) highest = std::max(highest, static_cast<uint32_t>(blocks[i]));
  if (first < end && highest >= params.k_cache.num_blocks) {
    throw std::out_of_range("block_table row " + to_string(request) + " holds block " +
                            to_string(static_cast<int32_t>(highest)) + ", but the cache has " +
                            to_string(params.k_cache.num_blocks) + " blocks");
  }
}

}  // namespace

void check_values(const PrefillAttentionParams& params) {
  check_scales(params.k_cache, params.v_cache, params.num_kv_heads);
  for (int64_t request = 0; request < params.num_requests; ++request) {
    const int64_t begin = params.cu_seqlens_q[request];
    const int64_t end = params.cu_seqlens_q[request + 1];
    if (begin < 0 || end < begin || end > params.num_tokens) {
      throw std::out_of_range(entry("cu_seqlens_q", request) + " .. is " + to_string(begin) + ", " + to_string(end) +
                              ", but q has " + to_string(params.num_tokens) + " tokens");
    }
    const int64_t length = params.context_lens[request];
    if (begin < end && length < end - begin) {
      throw std::out_of_range(entry("context_lens", request) + " is " + to_string(length) + ", less than the " +
                              to_string(end - begin) + " new tokens of the request");
    }
    if (begin < end) check_context(params, request, static_cast<int32_t>(length - (end - begin)));
  }
}

void check_values(const DecodeAttentionParams& params) {
  check_scales(params.k_cache, params.v_cache, params.num_kv_heads);
  for (int64_t request = 0; request < params.num_requests; ++request) {
    check_context(params, request, std::max(params.context_lens[request] - 1, 0));
  }
}

}  // namespace cudaprefill::cpu
