#include "csrc/cpu/expert_mlp.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "csrc/cpu/kernels.h"
#include "csrc/cpu/parallel.h"

namespace cudaprefill::cpu {
namespace {

// An expert that a token has chosen. Pairs are numbered token by token, num_chosen to each.
struct Choice {
  int32_t expert;
  float weight;
};

// The num_chosen largest logits, NaN below all numbers, the lower expert first where two are equal.
void choose(const float* logits, const ExpertMlpParams& params, Choice* choices) {
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  const auto key = [&](int32_t expert) { return std::isnan(logits[expert]) ? kLowest : logits[expert]; };
  float largest = kLowest;
  for (int32_t expert = 0; expert < params.num_experts; ++expert) largest = std::max(largest, key(expert));
  float sum = 0;
  for (int32_t expert = 0; expert < params.num_experts; ++expert) sum += std::exp(logits[expert] - largest);

  float sum_of_chosen = 0;
  for (Choice* choice = choices; choice != choices + params.num_chosen; ++choice) {
    int32_t best = -1;
    for (int32_t expert = 0; expert < params.num_experts; ++expert) {
      const bool chosen = std::any_of(choices, choice, [&](const Choice& other) { return other.expert == expert; });
      if (!chosen && (best < 0 || key(expert) > key(best))) best = expert;
    }
    *choice = {best, std::exp(logits[best] - largest) / sum};
    sum_of_chosen += choice->weight;
  }
  if (params.renormalise) {
    for (int32_t i = 0; i < params.num_chosen; ++i) choices[i].weight /= sum_of_chosen;
  }
}

LinearParams linear_of(const ExpertMatrices& matrices, int64_t first_row, int64_t num_outputs, int64_t num_inputs) {
  const bool in_groups = matrices.block_format != BlockFormat::kNone;
  const int64_t element_bytes = matrices.dtype == DType::kFloat32 ? 4 : 2;
  LinearParams params{};
  params.weight = static_cast<const char*>(matrices.data) +
                  (in_groups ? first_row / kGroupRows : first_row * element_bytes) * matrices.stride;
  params.weight_stride = matrices.stride;
  params.weight_dtype = matrices.dtype;
  params.block_format = matrices.block_format;
  params.num_inputs = params.x_stride = num_inputs;
  params.num_outputs = params.out_stride = num_outputs;
  return params;
}

}  // namespace

void expert_mlp(const ExpertMlpParams& params) {
  if (params.dtype != DType::kFloat32) throw std::invalid_argument("expert_mlp: x must be float32 on a CPU");
  const int64_t hidden = params.hidden_size, inner = params.inner_size, num_chosen = params.num_chosen;
  const auto* x = static_cast<const float*>(params.x);
  auto* out = static_cast<float*>(params.out);

  std::vector<Choice> choices(params.num_tokens * num_chosen);
  parallel_for(params.num_tokens, grain_of(params.num_experts * num_chosen), [&](int64_t first, int64_t last) {
    for (int64_t token = first; token < last; ++token) {
      const float* logits = static_cast<const float*>(params.router_logits) + token * params.logits_stride;
      choose(logits, params, choices.data() + token * num_chosen);
      std::fill_n(out + token * params.out_stride, hidden, 0.0f);
    }
  });

  // The pairs in the order of their experts, and in each expert in the order of the tokens.
  std::vector<int64_t> starts(params.num_experts + 1), pairs(choices.size());
  for (const Choice& choice : choices) ++starts[choice.expert + 1];
  const int64_t most = *std::max_element(starts.begin(), starts.end());
  std::partial_sum(starts.begin(), starts.end(), starts.begin());
  std::vector<int64_t> next(starts.begin(), starts.end() - 1);
  for (size_t pair = 0; pair < choices.size(); ++pair) pairs[next[choices[pair].expert]++] = static_cast<int64_t>(pair);

  const auto rows = [](int64_t count, int64_t columns) {
    return std::make_unique_for_overwrite<float[]>(count * columns);
  };
  const auto gathered = rows(most, hidden), gated = rows(most, inner), made = rows(most, hidden);
  for (int32_t expert = 0; expert < params.num_experts; ++expert) {
    const int64_t* of_expert = pairs.data() + starts[expert];
    const int64_t count = starts[expert + 1] - starts[expert];
    if (count == 0) continue;
    parallel_for(count, grain_of(hidden), [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        std::copy_n(x + of_expert[i] / num_chosen * params.x_stride, hidden, gathered.get() + i * hidden);
      }
    });
    LinearParams gate_up = linear_of(params.gate_up, expert * 2 * inner, 2 * inner, hidden);
    gate_up.x = gathered.get();
    gate_up.num_rows = count;
    gate_up.activation_bits = params.activation_bits;
    gated_linear({.gate_up = gate_up, .out = gated.get(), .out_stride = inner, .activation = Activation::kSilu});
    LinearParams down = linear_of(params.down, expert * hidden, hidden, inner);
    down.x = gated.get();
    down.out = made.get();
    down.num_rows = count;
    down.activation_bits = params.activation_bits;
    linear(down);
    // A token comes once in an expert, so no two threads add to one row.
    parallel_for(count, grain_of(2 * hidden), [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        float* row = out + of_expert[i] / num_chosen * params.out_stride;
        const float* from = made.get() + i * hidden;
        const float weight = choices[of_expert[i]].weight;
        for (int64_t column = 0; column < hidden; ++column) row[column] += weight * from[column];
      }
    });
  }
}

}  // namespace cudaprefill::cpu
