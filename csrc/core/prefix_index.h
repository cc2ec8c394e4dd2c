// Which block holds the KV of which tokens behind which prefix.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "csrc/core/block_hash.h"
#include "csrc/core/types.h"

namespace cudaprefill {

// One act of publishing, never reused: a block that is evicted and published again is another parent.
using Publication = uint64_t;
inline constexpr Publication kNotPublished = 0;

// All that decides whether two full blocks hold the same KV.
struct BlockKey {
  Hash128 hash;                        // only finds candidates
  Publication parent = kNotPublished;  // of the block before; kNotPublished for a first block
  std::span<const TokenId> token_ids;  // [block_size]
  std::string_view extra_keys;         // compared for first blocks; the others have them through their parent
};

// A hash table from BlockKey to block, chained through an array with one entry a block: nothing is allocated on the way
// of a request. A hit compares token ids, parent and extra keys, so it does not rest on the hash.
class PrefixIndex {
 public:
  PrefixIndex(int32_t num_blocks, int32_t block_size);

  // The block published under an equal key, or kNoBlock.
  BlockId find(const BlockKey& key) const;
  // `block` must not be published, nor any block under an equal key.
  void publish(BlockId block, const BlockKey& key);
  void withdraw(BlockId block);
  void clear();

  int32_t size() const { return size_; }
  bool contains(BlockId block) const { return entries_[block].publication != kNotPublished; }
  Publication publication(BlockId block) const { return entries_[block].publication; }
  Publication parent(BlockId block) const { return entries_[block].parent; }
  const Hash128& hash(BlockId block) const { return entries_[block].hash; }
  std::span<const TokenId> token_ids(BlockId block) const;
  // Those of the first block of its chain. Looks through all blocks.
  std::string_view extra_keys(BlockId block) const;

  // Throws std::logic_error if a published block cannot be found under its own key or the count is wrong.
  void check() const;

 private:
  struct Entry {
    Publication publication = kNotPublished;
    Publication parent = kNotPublished;
    Hash128 hash;
    BlockId next_in_bucket = kNoBlock;
    std::string extra_keys;  // of first blocks
  };

  size_t bucket_of(const Hash128& hash) const { return hash.low & (buckets_.size() - 1); }
  BlockKey key_of(BlockId block) const;

  int32_t block_size_;
  int32_t size_ = 0;
  Publication last_publication_ = kNotPublished;
  std::vector<Entry> entries_;      // [num_blocks]
  std::vector<TokenId> token_ids_;  // [num_blocks, block_size]
  std::vector<BlockId> buckets_;    // first block of each chain; the size is a power of two
};

}  // namespace cudaprefill
