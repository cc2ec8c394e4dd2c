// What the kernels of expert_mlp need: params.h says how to read it.
#pragma once

#include "csrc/ops/params.h"

namespace cudaprefill {

// The matrices of all experts, one below the other.
struct ExpertMatrices {
  const void* data;
  int64_t stride;  // elements of a row, or bytes of a group of rows in blocks
  DType dtype;
  BlockFormat block_format = BlockFormat::kNone;
};

// Each token chooses the num_chosen experts of the largest router logits. Its row of out is the sum of what these make
// of its row of x, down @ (silu(gate @ x) * (up @ x)), weighted by the softmax of the logits over all experts, and
// where `renormalise`, over the chosen ones.
struct ExpertMlpParams {
  const void* x;              // [num_tokens, hidden_size]
  const void* router_logits;  // [num_tokens, num_experts]
  ExpertMatrices gate_up;     // [num_experts * 2 * inner_size, hidden_size]: gate above up
  ExpertMatrices down;        // [num_experts * hidden_size, inner_size]
  void* out;                  // [num_tokens, hidden_size]
  int64_t num_tokens, x_stride, logits_stride, out_stride;
  int32_t hidden_size, inner_size, num_experts, num_chosen;
  bool renormalise;
  int32_t activation_bits = 32;  // as in LinearParams
  DType dtype;                   // of x, router_logits and out
};

}  // namespace cudaprefill
