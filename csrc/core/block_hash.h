// Keyed, chained hashes of token blocks.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "csrc/core/types.h"

namespace cudaprefill {

struct Hash128 {
  uint64_t low = 0;
  uint64_t high = 0;
  bool operator==(const Hash128&) const = default;
};

struct HashKey {
  uint64_t first = 0;
  uint64_t second = 0;
};

// SipHash-2-4 with a 128-bit result (Aumasson and Bernstein, "SipHash: a fast short-input PRF", 2012).
Hash128 siphash128(const HashKey& key, std::string_view bytes);

// What keeps equal token ids of different kinds apart (adapter, cache salt, ...), as one string. Kind and value carry
// their lengths, so two different lists of parts never give the same string; no parts give the empty string.
std::string encode_extra_keys(std::span<const std::pair<std::string, std::string>> parts);

// The parts of which `encoded` was made.
std::vector<std::pair<std::string, std::string>> decode_extra_keys(std::string_view encoded);

// Hashes a prompt block by block: each hash covers its block's token ids and, through its parent, all before them.
class BlockHasher {
 public:
  // Keyed by the operating system's random numbers: no client can prepare prompts that collide.
  static BlockHasher random();
  // Every hash is the same one: shows in tests that a hit never rests on the hash alone.
  static BlockHasher constant();
  explicit BlockHasher(const HashKey& key) : key_(key) {}

  // The parent of a first block. `extra_keys` as encode_extra_keys gives them.
  Hash128 root(std::string_view extra_keys) const;
  Hash128 chain(const Hash128& parent, std::span<const TokenId> token_ids) const;

 private:
  BlockHasher() = default;
  std::optional<HashKey> key_;  // none: constant
};

}  // namespace cudaprefill
