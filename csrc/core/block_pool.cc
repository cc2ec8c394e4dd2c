#include "csrc/core/block_pool.h"

#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>

namespace cudaprefill {
namespace {

int32_t at_least_one(int32_t value, const char* name) {
  if (value < 1) throw std::invalid_argument(std::string(name) + " must be at least 1, got " + std::to_string(value));
  return value;
}

std::string name_of(BlockId block) { return "block " + std::to_string(block); }

}  // namespace

BlockPool::BlockPool(int32_t num_blocks, int32_t block_size, bool enable_prefix_caching, const BlockHasher& hasher)
    : block_size_(at_least_one(block_size, "block_size")),
      prefix_caching_(enable_prefix_caching),
      hasher_(hasher),
      // Without prefix caching nothing is published and no token ids are kept.
      index_(at_least_one(num_blocks, "num_blocks"), enable_prefix_caching ? block_size : 0),
      free_list_(num_blocks),
      blocks_(num_blocks) {
  for (BlockId block = 0; block < num_blocks; ++block) free_list_.push_back(block);
}

void BlockPool::require_block(BlockId block) const {
  if (block < 0 || block >= num_blocks()) {
    throw std::out_of_range(name_of(block) + " is not one of the pool's " + std::to_string(num_blocks()) + " blocks");
  }
}

BlockId BlockPool::allocate(bool virtual_tokens) {
  const BlockId block = free_list_.front();
  if (block == kNoBlock) return kNoBlock;
  touch(block, index_.contains(block));
  free_list_.remove(block);
  if (index_.contains(block)) {
    if (recording_evictions_) evictions_.push_back(index_.hash(block).low);
    index_.withdraw(block);
    --num_cached_;
    ++num_evicted_;
  }
  blocks_[block] = {1, step_, virtual_tokens};
  ++num_taken_;
  return block;
}

void BlockPool::share(BlockId block) {
  if (free_list_.contains(block)) {
    if (!index_.contains(block)) throw std::logic_error(name_of(block) + " is free and cannot be shared");
    touch(block);
    free_list_.remove(block);
    --num_cached_;
    ++num_taken_;
  } else {
    touch(block);
  }
  ++blocks_[block].reference_count;
  blocks_[block].last_use = step_;
}

void BlockPool::release(BlockId block) {
  if (blocks_[block].reference_count == 0) throw std::invalid_argument(name_of(block) + " is free already");
  touch(block);
  blocks_[block].last_use = step_;
  if (--blocks_[block].reference_count > 0) return;
  if (index_.contains(block)) {
    free_list_.push_back(block);
    ++num_cached_;
  } else {
    free_list_.push_front(block);
  }
  ++num_freed_;
}

BlockId BlockPool::publish(BlockId block, const BlockKey& key) {
  const BlockId equal = index_.find(key);
  if (equal == kNoBlock) {
    index_.publish(block, key);
    return block;
  }
  share(equal);
  release(block);
  return equal;
}

void BlockPool::reset_prefix_cache() {
  if (recording_) {
    for (BlockId block = 0; block < num_blocks(); ++block) {
      if (state(block) == BlockState::kCached) touch(block, /*evicted=*/true);
    }
  }
  index_.clear();
  num_cached_ = 0;
  ++epoch_;
}

BlockState BlockPool::state(BlockId block) const {
  const int32_t references = blocks_[block].reference_count;
  if (references > 0) return references > 1 ? BlockState::kShared : BlockState::kActive;
  return index_.contains(block) ? BlockState::kCached : BlockState::kFree;
}

bool BlockPool::holds_virtual_tokens(BlockId block) const {
  return blocks_[block].virtual_tokens && state(block) != BlockState::kFree;
}

void BlockPool::record_changes(bool wanted) {
  recording_ = wanted;
  changes_.clear();
  change_of_.assign(wanted ? num_blocks() : 0, -1);
}

void BlockPool::touch(BlockId block, bool evicted) {
  if (!recording_) return;
  if (change_of_[block] < 0) {
    change_of_[block] = static_cast<int32_t>(changes_.size());
    changes_.push_back({block, state(block), false, holds_virtual_tokens(block)});
  }
  changes_[change_of_[block]].evicted |= evicted;
}

std::vector<BlockChange> BlockPool::take_changes() {
  std::vector<BlockChange> changes = std::exchange(changes_, {});
  for (BlockChange& change : changes) change_of_[change.block] = -1;
  std::erase_if(changes, [this](BlockChange& change) {
    const BlockState before = std::exchange(change.state, state(change.block));
    const bool was_virtual = std::exchange(change.virtual_tokens, holds_virtual_tokens(change.block));
    return change.state == before && change.virtual_tokens == was_virtual && !change.evicted;
  });
  return changes;
}

void BlockPool::record_evictions(bool wanted) {
  recording_evictions_ = wanted;
  evictions_.clear();
}

std::vector<uint64_t> BlockPool::take_evictions() { return std::exchange(evictions_, {}); }

void BlockPool::check() const {
  check_free_list();
  index_.check();
  check_prefixes();
}

void BlockPool::check(std::span<const int32_t> references) const {
  check();
  for (BlockId block = 0; block < num_blocks(); ++block) {
    if (references[block] != blocks_[block].reference_count) {
      throw std::logic_error(name_of(block) + " counts " + std::to_string(blocks_[block].reference_count) +
                             " references, its holders " + std::to_string(references[block]));
    }
  }
}

void BlockPool::check_free_list() const {
  int32_t listed = 0;
  int32_t cached = 0;
  for (BlockId block = free_list_.front(); block != kNoBlock; block = free_list_.next(block)) {
    if (++listed > num_blocks()) throw std::logic_error("the free list has a cycle");
    if (blocks_[block].reference_count != 0) throw std::logic_error(name_of(block) + " is in use and on the free list");
    if (index_.contains(block)) {
      ++cached;
    } else if (cached > 0) {
      throw std::logic_error(name_of(block) + " is free, but listed behind a cached block");
    }
  }
  int32_t used = 0;
  for (BlockId block = 0; block < num_blocks(); ++block) {
    if (blocks_[block].reference_count < 0) throw std::logic_error(name_of(block) + " has a negative reference count");
    if (blocks_[block].reference_count > 0) ++used;
  }
  if (listed != free_list_.size() || cached != num_cached_ || listed + used != num_blocks()) {
    throw std::logic_error("free " + std::to_string(listed - cached) + " + cached " + std::to_string(cached) +
                           " + used " + std::to_string(used) + " blocks, counted " + std::to_string(num_free()) +
                           " + " + std::to_string(num_cached_) + " + " + std::to_string(num_used()) + " of " +
                           std::to_string(num_blocks()));
  }
}

// Every published block has its published parent, and would be evicted before it.
void BlockPool::check_prefixes() const {
  std::unordered_map<Publication, BlockId> published;
  std::vector<int32_t> turn(num_blocks(), num_blocks());  // in the order of eviction; blocks in use come last
  int32_t position = 0;
  for (BlockId block = free_list_.front(); block != kNoBlock; block = free_list_.next(block)) turn[block] = position++;
  for (BlockId block = 0; block < num_blocks(); ++block) {
    if (index_.contains(block)) published.emplace(index_.publication(block), block);
  }
  for (const auto& [publication, block] : published) {
    if (index_.parent(block) == kNotPublished) continue;
    const auto parent = published.find(index_.parent(block));
    if (parent == published.end()) throw std::logic_error(name_of(block) + " is published without its parent");
    if (turn[parent->second] < turn[block]) {
      throw std::logic_error(name_of(parent->second) + " would be evicted before " + name_of(block) +
                             ", which continues it");
    }
  }
}

}  // namespace cudaprefill
