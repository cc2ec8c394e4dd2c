// The KV memory as blocks: who may take one, who shares one, what is kept for its prefix.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "csrc/core/block_hash.h"
#include "csrc/core/free_list.h"
#include "csrc/core/prefix_index.h"
#include "csrc/core/types.h"

namespace cudaprefill {

//             allocate                 share
//    free ---------------> active <-----------> shared        free:   no reference, nothing worth keeping
//     ^   release           |  ^     release                  active: one reference
//     +--(unpublished)------+  | share                        shared: more than one
//     | allocate takes the     |                              cached: no reference, findable by its prefix
//     | least recently used    |
//     +--------- cached <------+ release (published)
enum class BlockState : uint8_t { kFree, kActive, kShared, kCached };

struct BlockChange {
  BlockId block;
  BlockState state;     // now
  bool evicted;         // it was cached in between, and its prefix is forgotten
  bool virtual_tokens;  // it holds some, now
};

// Reference counts over a free list. The list has the blocks without a published prefix first, then the cached ones
// from the least to the most recently used. A holder releases its table from the last block to the first; since whoever
// holds a published block also holds its published parent, tails are always evicted before heads.
class BlockPool {
 public:
  // Throws std::invalid_argument when a size is below 1.
  BlockPool(int32_t num_blocks, int32_t block_size, bool enable_prefix_caching, const BlockHasher& hasher);

  int32_t num_blocks() const { return static_cast<int32_t>(blocks_.size()); }
  int32_t block_size() const { return block_size_; }
  bool prefix_caching() const { return prefix_caching_; }
  int32_t num_available() const { return free_list_.size(); }  // free and cached
  int32_t num_cached() const { return num_cached_; }
  int32_t num_free() const { return free_list_.size() - num_cached_; }
  int32_t num_used() const { return num_blocks() - free_list_.size(); }

  // A block with one reference, or kNoBlock. May evict a cached block. `virtual_tokens`: it is to hold some.
  BlockId allocate(bool virtual_tokens = false);
  // One more reference; takes a cached block back into use. Throws std::logic_error for a free block.
  void share(BlockId block);
  // One reference less. Throws std::invalid_argument if there is none.
  void release(BlockId block);

  const BlockHasher& hasher() const { return hasher_; }
  const PrefixIndex& index() const { return index_; }
  // Makes `block`, whose KV is written, findable under `key`. If an equal block is findable already, the reference
  // moves to that one. Returns the block that the holder now has.
  BlockId publish(BlockId block, const BlockKey& key);
  // Forgets every prefix. Blocks in use stay in use.
  void reset_prefix_cache();
  // Counts resets: a chain of parents that began under another epoch must not be continued.
  uint64_t epoch() const { return epoch_; }

  int32_t reference_count(BlockId block) const { return blocks_[block].reference_count; }
  BlockState state(BlockId block) const;
  bool holds_virtual_tokens(BlockId block) const;
  // The step in which `block` was last taken, shared or released.
  uint64_t last_use(BlockId block) const { return blocks_[block].last_use; }
  void set_step(uint64_t step) { step_ = step; }

  // Totals since construction.
  uint64_t num_taken() const { return num_taken_; }
  uint64_t num_freed() const { return num_freed_; }
  uint64_t num_evicted() const { return num_evicted_; }

  // The blocks whose state is not what it was at the last call, or that were evicted since, in the order in which they
  // were touched first. Recorded only while someone wants it; costs one entry a block however long nobody asks.
  void record_changes(bool wanted);
  std::vector<BlockChange> take_changes();

  // The low halves of the hashes of prefixes that were evicted, in order; recorded only while someone wants them.
  void record_evictions(bool wanted);
  std::vector<uint64_t> take_evictions();

  // Throws std::logic_error naming the first broken invariant. `references` [num_blocks] is what the holders know of.
  void check() const;
  void check(std::span<const int32_t> references) const;

  // Throws std::out_of_range for an id that is not a block.
  void require_block(BlockId block) const;

 private:
  struct Block {
    int32_t reference_count = 0;
    uint64_t last_use = 0;
    bool virtual_tokens = false;
  };

  // To be called before the state of a block changes.
  void touch(BlockId block, bool evicted = false);
  void check_free_list() const;
  void check_prefixes() const;

  int32_t block_size_;
  bool prefix_caching_;
  BlockHasher hasher_;
  PrefixIndex index_;
  FreeList free_list_;
  std::vector<Block> blocks_;
  int32_t num_cached_ = 0;
  uint64_t epoch_ = 0;
  uint64_t step_ = 0;
  uint64_t num_taken_ = 0;
  uint64_t num_freed_ = 0;
  uint64_t num_evicted_ = 0;
  bool recording_ = false;
  std::vector<BlockChange> changes_;  // with the state at the last call
  std::vector<int32_t> change_of_;    // [num_blocks] while recording: place in changes_, or -1
  bool recording_evictions_ = false;
  std::vector<uint64_t> evictions_;
};

}  // namespace cudaprefill
