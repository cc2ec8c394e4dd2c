#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

#include "csrc/cpu/float_types.h"
#include "csrc/cpu/kernel_declarations.h"
#include "csrc/cpu/paged_slot.h"
#include "csrc/cpu/parallel.h"

namespace cudaprefill::cpu::CUDAPREFILL_ISA {
namespace {

template <class T>
void norm_and_rotate(const RopeWriteKvParams& params, const T* from, const void* norm, const float* cos_sin,
                     float* row) {
  for (int64_t d = 0; d < params.head_size; ++d) row[d] = to_float(from[d]);
  if (norm != nullptr) {
    float squares = 0;
    for (int64_t d = 0; d < params.head_size; ++d) squares += row[d] * row[d];
    const float scale = 1 / std::sqrt(squares / params.head_size + params.norm_epsilon);
    for (int64_t d = 0; d < params.head_size; ++d) row[d] *= scale * to_float(static_cast<const T*>(norm)[d]);
  }
  const int64_t half = params.rotary_dim / 2;
  for (int64_t d = 0; d < half; ++d) {
    const float x = row[d], y = row[d + half], c = cos_sin[d], s = cos_sin[d + half];
    row[d] = x * c - y * s;
    row[d + half] = y * c + x * s;
  }
}

template <class T>
T* row_of(const HeadRows& rows, int64_t token, int64_t head) {
  return static_cast<T*>(rows.data) + token * rows.token_stride + head * rows.head_stride;
}

}  // namespace

void rope_write_kv(const RopeWriteKvParams& params) {
  check_slots(params.slot_mapping, params.num_tokens, params.k_cache, params.block_size);
  for (int64_t token = 0; token < params.num_tokens; ++token) {
    if (params.position_ids[token] < 0 || params.position_ids[token] >= params.max_positions) {
      throw std::out_of_range("position_ids[" + std::to_string(token) + "] is " +
                              std::to_string(params.position_ids[token]) + ", but cos_sin has " +
                              std::to_string(params.max_positions) + " positions");
    }
  }
  with_element_type(params.dtype, [&](auto t) {
    with_element_type(params.kv_dtype, [&](auto kv) {
      using T = decltype(t);
      using Kv = decltype(kv);
      parallel_for(params.num_tokens, 8, [&](int64_t first, int64_t last) {
        std::vector<float> row(params.head_size);
        for (int64_t token = first; token < last; ++token) {
          const float* cos_sin = params.cos_sin + params.position_ids[token] * params.rotary_dim;
          for (int64_t head = 0; head < params.num_q_heads; ++head) {
            T* q = row_of<T>(params.q, token, head);
            norm_and_rotate(params, q, params.q_norm, cos_sin, row.data());
            for (int64_t d = 0; d < params.head_size; ++d) q[d] = from_float<T>(row[d]);
          }
          if (params.slot_mapping[token] < 0) continue;
          const PagedSlot slot(params.slot_mapping[token], params.block_size);
          for (int64_t head = 0; head < params.num_kv_heads; ++head) {
            norm_and_rotate(params, row_of<T>(params.k, token, head), params.k_norm, cos_sin, row.data());
            Kv* k = slot.row<Kv>(params.k_cache, head);
            for (int64_t d = 0; d < params.head_size; ++d) k[d] = from_float<Kv>(row[d]);
            Kv* v = slot.row<Kv>(params.v_cache, head);
            const T* v_from = row_of<T>(params.v, token, head);
            for (int64_t d = 0; d < params.head_size; ++d) v[d] = from_float<Kv>(to_float(v_from[d]));
          }
        }
      });
    });
  });
}

}  // namespace cudaprefill::cpu::CUDAPREFILL_ISA
