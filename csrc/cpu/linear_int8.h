#pragma once

#include "csrc/cpu/isa.h"
#include "csrc/ops/params.h"

namespace cudaprefill::cpu::CUDAPREFILL_ISA {

void linear_integers(const LinearBlocksParams& params);

}  // namespace cudaprefill::cpu::CUDAPREFILL_ISA
