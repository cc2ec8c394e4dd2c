#include <cmath>
#include <stdexcept>
#include <string>

#include "csrc/cpu/kernel_declarations.h"
#include "csrc/cpu/paged_slot.h"
#include "csrc/cpu/parallel.h"
#include "csrc/cpu/simd.h"
#include "csrc/cpu/stored_numbers.h"
#include "csrc/cpu/sum_of_squares.h"

namespace cudaprefill::cpu::CUDAPREFILL_ISA {
namespace {

void check_positions(const RopeWriteKvParams& params) {
  for (int64_t token = 0; token < params.num_tokens; ++token) {
    if (params.position_ids[token] < 0 || params.position_ids[token] >= params.max_positions) {
      throw std::out_of_range("position_ids[" + std::to_string(token) + "] is " +
                              std::to_string(params.position_ids[token]) + ", but cos_sin has " +
                              std::to_string(params.max_positions) + " positions");
    }
  }
}

// The RMSNorm of one head: element i becomes x[i] * scale * weight[i].
template <class T>
struct HeadNorm {
  const T* weight;
  float scale;

  HeadNorm(const T* x, const void* norm_weight, int64_t size, float epsilon)
      : weight(static_cast<const T*>(norm_weight)),
        scale(1 / std::sqrt(sum_of_squares(x, size) / static_cast<float>(size) + epsilon)) {}
  CUDAPREFILL_INLINE Vec apply(Vec v, int64_t i) const { return v * broadcast(scale) * load(weight + i); }
  CUDAPREFILL_INLINE Vec apply_first(Vec v, int64_t i, int count) const {
    return v * broadcast(scale) * load_first(weight + i, count);
  }
};

struct NoNorm {
  CUDAPREFILL_INLINE Vec apply(Vec v, int64_t) const { return v; }
  CUDAPREFILL_INLINE Vec apply_first(Vec v, int64_t, int) const { return v; }
};

// The element i of the first half of the rotary part turns with element half + i; what lies behind both is only normed.
// `to` may be `from`.
template <class From, class To, class Norm>
void rotate_row(const From* from, To* to, const Norm& norm, const StoredNumbers<To>& stored, const float* cos_sin,
                int64_t rotary_dim, int64_t head_size) {
  const int64_t half = rotary_dim / 2;
  for_each_vector(
      half,
      [&](int64_t i) {
        const Vec x = norm.apply(load(from + i), i), y = norm.apply(load(from + half + i), half + i);
        const Vec cos = load(cos_sin + i), sin = load(cos_sin + half + i);
        store(to + i, stored.of(x * cos - y * sin));
        store(to + half + i, stored.of(y * cos + x * sin));
      },
      [&](int64_t i, int count) {
        const Vec x = norm.apply_first(load_first(from + i, count), i, count);
        const Vec y = norm.apply_first(load_first(from + half + i, count), half + i, count);
        const Vec cos = load_first(cos_sin + i, count), sin = load_first(cos_sin + half + i, count);
        store_first(to + i, stored.of(x * cos - y * sin), count);
        store_first(to + half + i, stored.of(y * cos + x * sin), count);
      });
  for_each_vector(
      head_size - rotary_dim,
      [&](int64_t i) {
        store(to + rotary_dim + i, stored.of(norm.apply(load(from + rotary_dim + i), rotary_dim + i)));
      },
      [&](int64_t i, int count) {
        const Vec v = load_first(from + rotary_dim + i, count);
        store_first(to + rotary_dim + i, stored.of(norm.apply_first(v, rotary_dim + i, count)), count);
      });
}

template <class From, class To>
void norm_and_rotate_row(const RopeWriteKvParams& params, const From* from, To* to, const void* norm_weight,
                         const StoredNumbers<To>& stored, const float* cos_sin) {
  if (norm_weight == nullptr) {
    rotate_row(from, to, NoNorm{}, stored, cos_sin, params.rotary_dim, params.head_size);
  } else {
    const HeadNorm<From> norm(from, norm_weight, params.head_size, params.norm_epsilon);
    rotate_row(from, to, norm, stored, cos_sin, params.rotary_dim, params.head_size);
  }
}

template <class T, class Kv>
void run_token(const RopeWriteKvParams& params, int64_t token) {
  const float* cos_sin = params.cos_sin + params.position_ids[token] * params.rotary_dim;
  const StoredNumbers<T> of_q(params.k_cache, 0);
  for (int64_t head = 0; head < params.num_q_heads; ++head) {
    T* q = row_of<T>(params.q, token, head);
    norm_and_rotate_row(params, q, q, params.q_norm, of_q, cos_sin);
  }
  if (params.slot_mapping[token] < 0) return;
  const PagedSlot slot(params.slot_mapping[token], params.block_size);
  for (int64_t head = 0; head < params.num_kv_heads; ++head) {
    norm_and_rotate_row(params, row_of<T>(params.k, token, head), slot.row<Kv>(params.k_cache, head), params.k_norm,
                        StoredNumbers<Kv>(params.k_cache, head), cos_sin);
    store_row(row_of<T>(params.v, token, head), slot.row<Kv>(params.v_cache, head), params.head_size,
              StoredNumbers<Kv>(params.v_cache, head));
  }
}

}  // namespace

void rope_write_kv(const RopeWriteKvParams& params) {
  check_slots(params.slot_mapping, params.num_tokens, params.k_cache, params.block_size);
  check_positions(params);
  check_scales(params.k_cache, params.v_cache, params.num_kv_heads);
  with_element_types(params.dtype, params.kv_dtype, [&](auto t, auto kv) {
    const int64_t token_size = (params.num_q_heads + 2 * params.num_kv_heads) * params.head_size;
    parallel_for(params.num_tokens, grain_of(token_size), [&](int64_t first, int64_t last) {
      for (int64_t token = first; token < last; ++token) run_token<decltype(t), decltype(kv)>(params, token);
    });
  });
}

}  // namespace cudaprefill::cpu::CUDAPREFILL_ISA
