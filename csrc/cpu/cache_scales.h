// The scales of a float8 cache, one for each KV head: a number x is stored as x / scale, and what is stored stands for
// that times the scale. Other caches have none, which is a scale of 1.
#pragma once

#include <cstdint>

#include "csrc/ops/params.h"

namespace cudaprefill::cpu {

inline float scale_of(const PagedCache& cache, int64_t head) {
  return cache.scales == nullptr ? 1.0f : cache.scales[head];
}

// Raises std::out_of_range, with the value, unless every scale is a normal number above 0.
void check_scales(const PagedCache& k_cache, const PagedCache& v_cache, int64_t num_kv_heads);

}  // namespace cudaprefill::cpu
