// Experts on the CPU: the tokens of each expert pass through its matrices by the kernels of `linear`, one expert after
// the other.
#pragma once

#include "csrc/ops/expert_params.h"

namespace cudaprefill::cpu {

// x, router_logits and out must be float32; std::invalid_argument otherwise.
void expert_mlp(const ExpertMlpParams& params);

}  // namespace cudaprefill::cpu
