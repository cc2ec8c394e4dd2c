#include "csrc/cpu/attention_plain.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

#include "csrc/cpu/float_types.h"
#include "csrc/cpu/parallel.h"

namespace cudaprefill::cpu {
namespace {

// The rows of one head of K or V, found through the request's row of the block table.
template <class T>
class PagedRows {
 public:
  PagedRows(const PagedCache& cache, const int32_t* block_table, int64_t block_size, int64_t kv_head)
      : cache_(cache), block_table_(block_table), block_size_(block_size), kv_head_(kv_head) {}

  const T* row(int64_t position) const {
    const int64_t block = block_table_[position / block_size_];
    if (block < 0 || block >= cache_.num_blocks) {
      throw std::out_of_range("block_table holds block " + std::to_string(block) + ", but the cache has " +
                              std::to_string(cache_.num_blocks) + " blocks");
    }
    return static_cast<const T*>(cache_.data) + block * cache_.block_stride + kv_head_ * cache_.head_stride +
           position % block_size_ * cache_.slot_stride;
  }

 private:
  const PagedCache& cache_;
  const int32_t* block_table_;
  int64_t block_size_;
  int64_t kv_head_;
};

// One query row of one head against the keys first .. last - 1.
template <class T, class Kv, class Params>
void attend(const Params& params, const int32_t* block_table, int64_t head, const T* q, T* out, int64_t first,
            int64_t last) {
  const int64_t kv_head = head / (params.num_q_heads / params.num_kv_heads);
  const PagedRows<Kv> keys(params.k_cache, block_table, params.block_size, kv_head);
  const PagedRows<Kv> values(params.v_cache, block_table, params.block_size, kv_head);
  std::vector<float> scores(last - first);
  float highest = -INFINITY;
  for (int64_t i = first; i < last; ++i) {
    const Kv* key = keys.row(i);
    float score = 0;
    for (int64_t d = 0; d < params.head_size; ++d) score += to_float(q[d]) * to_float(key[d]);
    score *= params.scale;
    if (params.softcap > 0) score = params.softcap * std::tanh(score / params.softcap);
    scores[i - first] = score;
    highest = std::max(highest, score);
  }
  std::vector<float> sum(params.head_size, 0.0f);
  float total = 0;
  for (int64_t i = first; i < last; ++i) {
    const float weight = std::exp(scores[i - first] - highest);
    const Kv* value = values.row(i);
    total += weight;
    for (int64_t d = 0; d < params.head_size; ++d) sum[d] += weight * to_float(value[d]);
  }
  for (int64_t d = 0; d < params.head_size; ++d) out[d] = from_float<T>(first == last ? 0.0f : sum[d] / total);
}

template <class T>
T* row_of(const HeadRows& rows, int64_t token, int64_t head) {
  return static_cast<T*>(rows.data) + token * rows.token_stride + head * rows.head_stride;
}

int64_t first_key(int64_t position, int32_t window) {
  return window == 0 ? 0 : std::max<int64_t>(0, position - window + 1);
}

template <class Params>
void check_context_len(const Params& params, int64_t request) {
  const int64_t length = params.context_lens[request];
  if (length < 0 || length > params.max_blocks * params.block_size) {
    throw std::out_of_range("context_lens[" + std::to_string(request) + "] is " + std::to_string(length) +
                            ", but block_table holds " + std::to_string(params.max_blocks * params.block_size) +
                            " slots a request");
  }
}

}  // namespace

void prefill_attention_plain(const PrefillAttentionParams& params) {
  const int64_t num_heads = params.num_q_heads;
  for (int64_t request = 0; request < params.num_requests; ++request) {
    const int64_t begin = params.cu_seqlens_q[request];
    const int64_t end = params.cu_seqlens_q[request + 1];
    if (begin < 0 || end < begin || end > params.num_tokens) {
      throw std::out_of_range("cu_seqlens_q gives request " + std::to_string(request) + " the rows " +
                              std::to_string(begin) + " .. " + std::to_string(end) + ", but q has " +
                              std::to_string(params.num_tokens));
    }
    check_context_len(params, request);
    if (end - begin > params.context_lens[request]) {
      throw std::out_of_range("context_lens[" + std::to_string(request) + "] is " +
                              std::to_string(params.context_lens[request]) + ", less than its " +
                              std::to_string(end - begin) + " new tokens");
    }
  }
  with_element_types(params.dtype, params.kv_dtype, [&](auto t, auto kv) {
    using T = decltype(t);
    using Kv = decltype(kv);
    for (int64_t request = 0; request < params.num_requests; ++request) {
      const int64_t begin = params.cu_seqlens_q[request];
      const int64_t rows = params.cu_seqlens_q[request + 1] - begin;
      const int64_t cached = params.context_lens[request] - rows;
      parallel_for(rows * num_heads, 8, [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i) {
          const int64_t row = i / num_heads, head = i % num_heads, position = cached + row;
          attend<T, Kv>(params, params.block_table + request * params.block_table_stride, head,
                        row_of<T>(params.q, begin + row, head), row_of<T>(params.out, begin + row, head),
                        first_key(position, params.window), position + 1);
        }
      });
    }
  });
}

void decode_attention_plain(const DecodeAttentionParams& params) {
  for (int64_t request = 0; request < params.num_requests; ++request) check_context_len(params, request);
  with_element_types(params.dtype, params.kv_dtype, [&](auto t, auto kv) {
    using T = decltype(t);
    using Kv = decltype(kv);
    parallel_for(static_cast<int64_t>(params.num_requests) * params.num_q_heads, 8, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        const int64_t request = i / params.num_q_heads, head = i % params.num_q_heads;
        const int64_t length = params.context_lens[request];
        attend<T, Kv>(params, params.block_table + request * params.block_table_stride, head,
                      row_of<T>(params.q, request, head), row_of<T>(params.out, request, head),
                      length == 0 ? 0 : first_key(length - 1, params.window), length);
      }
    });
  });
}

}  // namespace cudaprefill::cpu
