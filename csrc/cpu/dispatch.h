// Which version of the kernels this process runs: chosen once, by the features that the CPU and the operating system
// really offer.
#pragma once

#include "csrc/cpu/kernels.h"

namespace cudaprefill::cpu {

struct IsaLevel {
  const char* name;  // "plain", "avx2", "avx2_vnni", "avx512", "avx512_vnni" or "avx512_bf16"
  KernelTable kernels;
};

// The highest level that runs here, or the one that the environment variable CUDAPREFILL_CPU_ISA names. Raises
// std::runtime_error when it names an unknown level or one that this machine lacks.
const IsaLevel& isa_level();

}  // namespace cudaprefill::cpu
