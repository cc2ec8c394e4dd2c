// What the kernels of expert_mlp share: the workspace of a call.
#pragma once

#include <cstdint>

#include "csrc/ops/expert_params.h"

namespace cudaprefill {

constexpr int kMaxExperts = 256;
constexpr int kMaxChosen = 32;
constexpr int kExpertRows = 64;  // of a tile

// A pair is a token and one expert that it chose; pair p belongs to token p / num_chosen. `sorted` holds the pairs in
// the order of their experts.
struct ExpertTile {
  int32_t expert;
  int32_t first, count;  // sorted[first .. first + count); no pairs where there are fewer tiles than thread blocks
  int32_t unused;
};

struct ExpertLaunch {
  ExpertMlpParams op;
  int32_t* experts;   // of each pair
  float* weights;     // of each pair
  int32_t* sorted;    // [num_pairs]
  ExpertTile* tiles;  // [max_tiles]
  void* inner;        // [num_pairs, inner_size]: in the order of `sorted` for 16-bit formats, of the pairs for float32
  void* outputs;      // [num_pairs, hidden_size], in the order of the pairs
  int32_t num_pairs, max_tiles;
};

}  // namespace cudaprefill
