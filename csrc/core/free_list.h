// The blocks that nobody holds, in the order in which they will be taken.
#pragma once

#include <vector>

#include "csrc/core/types.h"

namespace cudaprefill {

// A doubly linked list threaded through one array of links, so any block leaves it in constant time:
// a ring of blocks closed by a sentinel behind the last block id.
class FreeList {
 public:
  explicit FreeList(int32_t num_blocks) : links_(num_blocks + 1), sentinel_(num_blocks) {
    links_[sentinel_] = {sentinel_, sentinel_};
  }

  int32_t size() const { return size_; }
  bool contains(BlockId block) const { return links_[block].next != kNoBlock; }
  BlockId front() const { return next(sentinel_); }
  // The block behind `block`, kNoBlock at the end.
  BlockId next(BlockId block) const {
    const BlockId following = links_[block].next;
    return following == sentinel_ ? kNoBlock : following;
  }

  void push_front(BlockId block) { insert_before(links_[sentinel_].next, block); }
  void push_back(BlockId block) { insert_before(sentinel_, block); }

  void remove(BlockId block) {
    Link& link = links_[block];
    links_[link.previous].next = link.next;
    links_[link.next].previous = link.previous;
    link = {};
    --size_;
  }

 private:
  struct Link {
    BlockId previous = kNoBlock;
    BlockId next = kNoBlock;
  };

  void insert_before(BlockId following, BlockId block) {
    const BlockId previous = links_[following].previous;
    links_[block] = {previous, following};
    links_[previous].next = block;
    links_[following].previous = block;
    ++size_;
  }

  std::vector<Link> links_;
  BlockId sentinel_;
  int32_t size_ = 0;
};

}  // namespace cudaprefill
