// The first half of a gated MLP by the kernels of `linear` and of the activation, one after the other.
#pragma once

#include "csrc/ops/params.h"

namespace cudaprefill::cpu {

// To the bit what gated_linear gives any other way: for shapes that gain nothing from having both in one pass.
void gated_linear_in_two_steps(const GatedLinearParams& params);

}  // namespace cudaprefill::cpu
