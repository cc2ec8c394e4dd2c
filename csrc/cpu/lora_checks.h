// The values inside the integer tensors of `add_lora`, checked before anything is read through them or written.
#pragma once

#include "csrc/ops/params.h"

namespace cudaprefill::cpu {

// Rows exist, and the parts of adapters that have rows fit the outputs. Raises std::out_of_range with the value and its
// bound. That addresses are right can only be trusted.
void check_values(const AddLoraParams& params);

}  // namespace cudaprefill::cpu
