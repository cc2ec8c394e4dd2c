// Where a slot lies in a paged cache.
#pragma once

#include <cstdint>

#include "csrc/cpu/float_types.h"
#include "csrc/ops/params.h"

namespace cudaprefill::cpu {

struct PagedSlot {
  int64_t block, offset;

  CUDAPREFILL_INLINE PagedSlot(int64_t slot, int64_t block_size)
      : block(slot / block_size), offset(slot % block_size) {}

  template <class Kv>
  CUDAPREFILL_INLINE Kv* row(const PagedCache& cache, int64_t head) const {
    return static_cast<Kv*>(cache.data) + block * cache.block_stride + head * cache.head_stride +
           offset * cache.slot_stride;
  }
};

// The row of one token and head in q, k, v or out.
template <class T>
CUDAPREFILL_INLINE T* row_of(const HeadRows& rows, int64_t token, int64_t head) {
  return static_cast<T*>(rows.data) + token * rows.token_stride + head * rows.head_stride;
}

// Raises std::out_of_range unless every slot is -1 (do not write) or lies in the cache.
void check_slots(const int64_t* slot_mapping, int64_t num_tokens, const PagedCache& cache, int64_t block_size);

}  // namespace cudaprefill::cpu
