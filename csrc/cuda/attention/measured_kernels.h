// Which kernel a Hopper device is fastest with, from a number of new tokens (prefill) or of requests (decode) on.
// Written by benchmarks/kernel_choice.py from a run of benchmarks/attention.py on such a device; kernel_choice.h reads
// it.
#pragma once

#include <array>

#include "csrc/cuda/attention/kernel_choice.h"

namespace cudaprefill::cuda {

// clang-format off
constexpr std::array<MeasuredKernel<PrefillKernel>, 0> kMeasuredPrefill{};

constexpr std::array<MeasuredKernel<DecodeKernel>, 0> kMeasuredDecode{};
// clang-format on

}  // namespace cudaprefill::cuda
