#include "csrc/core/block_pool.h"

#include <vector>

#include "check.h"

using namespace cudaprefill;
using test::message_of;

namespace {

constexpr HashKey kKey{1, 2};

BlockPool pool_of(int32_t num_blocks, const BlockHasher& hasher = BlockHasher(kKey)) {
  return BlockPool(num_blocks, 2, true, hasher);
}

// A key of two tokens behind `parent`.
BlockKey key_of(const BlockPool& pool, const std::vector<TokenId>& token_ids, BlockId parent = kNoBlock,
                std::string_view extra_keys = "") {
  const Hash128 hash = parent == kNoBlock ? pool.hasher().root(extra_keys) : pool.index().hash(parent);
  return {pool.hasher().chain(hash, token_ids), parent == kNoBlock ? kNotPublished : pool.index().publication(parent),
          token_ids, extra_keys};
}

}  // namespace

TEST(a_pool_needs_a_block) {
  CHECK(message_of<std::invalid_argument>([] { pool_of(0); }) == "num_blocks must be at least 1, got 0");
}

TEST(a_pool_gives_each_block_once_and_then_none) {
  BlockPool pool = pool_of(3);
  CHECK(pool.allocate() == 0 && pool.allocate() == 1 && pool.allocate() == 2);
  CHECK(pool.allocate() == kNoBlock);
  CHECK(pool.num_used() == 3 && pool.num_available() == 0);
  pool.check();
}

TEST(releasing_a_free_block_is_an_error) {
  BlockPool pool = pool_of(2);
  const BlockId block = pool.allocate();
  pool.release(block);
  CHECK(message_of<std::invalid_argument>([&] { pool.release(block); }) == "block 0 is free already");
  pool.check();
}

TEST(a_free_block_cannot_be_shared) {
  BlockPool pool = pool_of(2);
  CHECK(message_of<std::logic_error>([&] { pool.share(1); }) == "block 1 is free and cannot be shared");
}

TEST(a_shared_block_is_free_after_its_last_release) {
  BlockPool pool = pool_of(2);
  const BlockId block = pool.allocate();
  pool.share(block);
  CHECK(pool.state(block) == BlockState::kShared);
  pool.release(block);
  CHECK(pool.state(block) == BlockState::kActive);
  pool.release(block);
  CHECK(pool.state(block) == BlockState::kFree);
  pool.check();
}

TEST(blocks_without_a_prefix_are_taken_before_cached_ones_and_those_by_last_use) {
  BlockPool pool = pool_of(3);
  const BlockId old = pool.allocate();
  const BlockId recent = pool.allocate();
  const BlockId plain = pool.allocate();
  pool.publish(old, key_of(pool, {1, 2}));
  pool.publish(recent, key_of(pool, {3, 4}));
  pool.release(old);
  pool.release(recent);
  pool.release(plain);
  pool.share(old);  // a hit makes it the most recently used
  pool.release(old);
  CHECK(pool.num_cached() == 2 && pool.num_free() == 1);
  CHECK(pool.allocate() == plain && pool.allocate() == recent && pool.allocate() == old);
  CHECK(pool.num_evicted() == 2 && pool.index().size() == 0);
  pool.check();
}

TEST(an_equal_block_that_is_published_already_takes_the_place_of_a_duplicate) {
  BlockPool pool = pool_of(2);
  const BlockId first = pool.allocate();
  const BlockId second = pool.allocate();
  CHECK(pool.publish(first, key_of(pool, {1, 2})) == first);
  CHECK(pool.publish(second, key_of(pool, {1, 2})) == first);
  CHECK(pool.reference_count(first) == 2 && pool.state(second) == BlockState::kFree);
  pool.check();
}

TEST(equal_hashes_do_not_make_blocks_equal) {
  BlockPool pool = pool_of(5, BlockHasher::constant());
  const BlockId a = pool.allocate();
  const BlockId b = pool.allocate();
  const BlockId salted = pool.allocate();
  CHECK(pool.publish(a, key_of(pool, {1, 2})) == a);
  CHECK(pool.publish(b, key_of(pool, {3, 4})) == b);
  CHECK(pool.publish(salted, key_of(pool, {1, 2}, kNoBlock, "salt")) == salted);
  const BlockId behind_a = pool.allocate();
  const BlockId behind_b = pool.allocate();
  CHECK(pool.publish(behind_a, key_of(pool, {1, 2}, a)) == behind_a);
  CHECK(pool.publish(behind_b, key_of(pool, {1, 2}, b)) == behind_b);
  CHECK(pool.index().find(key_of(pool, {1, 2}, b)) == behind_b);
  CHECK(pool.index().find(key_of(pool, {3, 4}, b)) == kNoBlock);
  pool.check();
}

TEST(a_block_published_again_is_another_parent) {
  BlockPool pool = pool_of(1);
  const BlockId block = pool.allocate();
  pool.publish(block, key_of(pool, {1, 2}));
  const BlockKey child_of_the_first = key_of(pool, {5, 6}, block);
  pool.release(block);
  pool.allocate();
  pool.publish(block, key_of(pool, {1, 2}));
  CHECK(child_of_the_first.parent != pool.index().publication(block));
}

TEST(a_reset_forgets_prefixes_and_keeps_blocks_in_use) {
  BlockPool pool = pool_of(2);
  const BlockId used = pool.allocate();
  const BlockId cached = pool.allocate();
  pool.publish(used, key_of(pool, {1, 2}));
  pool.publish(cached, key_of(pool, {3, 4}));
  pool.release(cached);
  const uint64_t epoch = pool.epoch();
  pool.reset_prefix_cache();
  CHECK(pool.epoch() != epoch);
  CHECK(pool.num_cached() == 0 && pool.num_used() == 1 && pool.num_free() == 1);
  CHECK(pool.index().find(key_of(pool, {1, 2})) == kNoBlock);
  pool.check();
}

TEST(a_wrong_reference_count_is_named) {
  BlockPool pool = pool_of(2);
  pool.allocate();
  const std::vector<int32_t> references = {2, 0};
  CHECK(message_of<std::logic_error>([&] { pool.check(references); }) == "block 0 counts 1 references, its holders 2");
}

TEST(a_head_that_would_be_evicted_before_its_tail_is_named) {
  BlockPool pool = pool_of(2);
  const BlockId head = pool.allocate();
  const BlockId tail = pool.allocate();
  pool.publish(head, key_of(pool, {1, 2}));
  pool.publish(tail, key_of(pool, {3, 4}, head));
  pool.release(head);  // the wrong way round
  pool.release(tail);
  CHECK(message_of<std::logic_error>([&] { pool.check(); }) ==
        "block 0 would be evicted before block 1, which continues it");
}

bool is(const BlockChange& change, BlockId block, BlockState state, bool evicted) {
  return change.block == block && change.state == state && change.evicted == evicted;
}

TEST(changes_are_told_once_a_block_and_only_while_wanted) {
  BlockPool pool = pool_of(2);
  pool.record_changes(true);
  const BlockId block = pool.allocate();
  pool.publish(block, key_of(pool, {1, 2}));
  pool.share(block);
  std::vector<BlockChange> changes = pool.take_changes();
  CHECK(changes.size() == 1 && is(changes[0], block, BlockState::kShared, false));
  CHECK(pool.take_changes().empty());
  pool.release(block);
  pool.share(block);
  CHECK(pool.take_changes().empty());  // as it was
  pool.record_changes(false);
  pool.release(block);
  CHECK(pool.take_changes().empty());
}

TEST(a_block_of_virtual_tokens_is_told_as_one) {
  BlockPool pool = pool_of(2);
  const BlockId block = pool.allocate();
  pool.record_changes(true);
  pool.release(block);
  CHECK(pool.allocate(/*virtual_tokens=*/true) == block);
  std::vector<BlockChange> changes = pool.take_changes();  // active before and after, and yet another
  CHECK(changes.size() == 1 && changes[0].virtual_tokens && pool.holds_virtual_tokens(block));
  pool.publish(block, key_of(pool, {-1, -2}));
  pool.release(block);
  changes = pool.take_changes();
  CHECK(changes.size() == 1 && is(changes[0], block, BlockState::kCached, false) && changes[0].virtual_tokens);
  pool.reset_prefix_cache();
  changes = pool.take_changes();
  CHECK(changes.size() == 1 && !changes[0].virtual_tokens);  // a free block holds nothing
  CHECK(!pool.holds_virtual_tokens(block));
}

TEST(an_eviction_is_told_whatever_became_of_the_block) {
  BlockPool pool = pool_of(1);
  const BlockId block = pool.allocate();
  pool.publish(block, key_of(pool, {1, 2}));
  pool.release(block);
  pool.record_changes(true);
  pool.allocate();
  pool.publish(block, key_of(pool, {3, 4}));
  pool.release(block);
  std::vector<BlockChange> changes = pool.take_changes();
  CHECK(changes.size() == 1 && is(changes[0], block, BlockState::kCached, true));
  pool.reset_prefix_cache();
  changes = pool.take_changes();
  CHECK(changes.size() == 1 && is(changes[0], block, BlockState::kFree, true));
}
