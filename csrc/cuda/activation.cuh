// What a gate is passed through before it multiplies.
#pragma once

#include <cuda_runtime.h>

#include "csrc/ops/params.h"

namespace cudaprefill::cuda {

template <Activation activation>
__device__ __forceinline__ float activate(float gate) {
  if constexpr (activation == Activation::kSilu) {
    return gate / (1.0f + expf(-gate));
  } else {
    // x / 2 (1 + tanh u) with u = sqrt(2 / pi) (x + 0.044715 x^3), which is x / (1 + e^-2u)
    constexpr float kTwiceRoot = 1.5957691216f;  // 2 sqrt(2 / pi)
    return gate / (1.0f + expf(-kTwiceRoot * gate * (1.0f + 0.044715f * gate * gate)));
  }
}

}  // namespace cudaprefill::cuda
