// The values inside the integer tensors of an attention call, checked before anything is read through them or written.
// All raise std::out_of_range with the value and its bound.
#pragma once

#include <cstdint>

#include "csrc/ops/params.h"

namespace cudaprefill::cpu {

// The first key that the row at `position` sees.
constexpr int32_t first_visible_key(int32_t position, int32_t window) {
  return window == 0 || position < window ? 0 : position - window + 1;
}

// Scales are usable, requests own rows inside q, their new tokens are part of their context, and every block that a
// query sees exists.
void check_values(const PrefillAttentionParams& params);
void check_values(const DecodeAttentionParams& params);

}  // namespace cudaprefill::cpu
