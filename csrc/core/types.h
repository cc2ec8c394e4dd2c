// The names that every part of the core shares.
#pragma once

#include <cstdint>

namespace cudaprefill {

using BlockId = int32_t;  // physical block of the pool
using TokenId = int32_t;
using Row = int32_t;  // a request's place in the request table

inline constexpr BlockId kNoBlock = -1;
inline constexpr Row kNoRow = -1;

// Blocks that hold `num_tokens` tokens.
constexpr int32_t blocks_for(int32_t num_tokens, int32_t block_size) {
  return num_tokens / block_size + (num_tokens % block_size != 0);
}

}  // namespace cudaprefill
