#include "csrc/core/prefix_index.h"

#include <algorithm>
#include <bit>
#include <stdexcept>
#include <unordered_map>

namespace cudaprefill {

PrefixIndex::PrefixIndex(int32_t num_blocks, int32_t block_size)
    : block_size_(block_size),
      entries_(num_blocks),
      token_ids_(static_cast<size_t>(num_blocks) * block_size),
      buckets_(std::bit_ceil(static_cast<size_t>(num_blocks)), kNoBlock) {}

std::span<const TokenId> PrefixIndex::token_ids(BlockId block) const {
  return std::span(token_ids_).subspan(static_cast<size_t>(block) * block_size_, block_size_);
}

std::string_view PrefixIndex::extra_keys(BlockId block) const {
  std::unordered_map<Publication, BlockId> published;
  for (BlockId each = 0; each < static_cast<BlockId>(entries_.size()); ++each) {
    if (contains(each)) published.emplace(publication(each), each);
  }
  while (parent(block) != kNotPublished) block = published.at(parent(block));
  return entries_[block].extra_keys;
}

BlockKey PrefixIndex::key_of(BlockId block) const {
  const Entry& entry = entries_[block];
  return {entry.hash, entry.parent, token_ids(block), entry.extra_keys};
}

BlockId PrefixIndex::find(const BlockKey& key) const {
  for (BlockId block = buckets_[bucket_of(key.hash)]; block != kNoBlock; block = entries_[block].next_in_bucket) {
    const Entry& entry = entries_[block];
    if (entry.hash == key.hash && entry.parent == key.parent && std::ranges::equal(token_ids(block), key.token_ids) &&
        (key.parent != kNotPublished || entry.extra_keys == key.extra_keys)) {
      return block;
    }
  }
  return kNoBlock;
}

void PrefixIndex::publish(BlockId block, const BlockKey& key) {
  Entry& entry = entries_[block];
  BlockId& bucket = buckets_[bucket_of(key.hash)];
  entry.publication = ++last_publication_;
  entry.parent = key.parent;
  entry.hash = key.hash;
  entry.next_in_bucket = bucket;
  if (key.parent == kNotPublished) entry.extra_keys = key.extra_keys;
  std::ranges::copy(key.token_ids, token_ids_.begin() + static_cast<ptrdiff_t>(block) * block_size_);
  bucket = block;
  ++size_;
}

void PrefixIndex::withdraw(BlockId block) {
  Entry& entry = entries_[block];
  BlockId* link = &buckets_[bucket_of(entry.hash)];
  while (*link != block) link = &entries_[*link].next_in_bucket;
  *link = entry.next_in_bucket;
  entry = {};
  --size_;
}

void PrefixIndex::clear() {
  std::ranges::fill(entries_, Entry{});
  std::ranges::fill(buckets_, kNoBlock);
  size_ = 0;
}

void PrefixIndex::check() const {
  int32_t published = 0;
  for (BlockId block = 0; block < static_cast<BlockId>(entries_.size()); ++block) {
    if (!contains(block)) continue;
    ++published;
    const BlockId found = find(key_of(block));
    if (found != block) {
      throw std::logic_error("prefix index: looking up block " + std::to_string(block) + " by its own key finds " +
                             std::to_string(found));
    }
  }
  if (published != size_) {
    throw std::logic_error("prefix index: " + std::to_string(published) + " blocks are published, counted " +
                           std::to_string(size_));
  }
}

}  // namespace cudaprefill
