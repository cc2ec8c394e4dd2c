#include "csrc/core/request_table.h"

#include <vector>

#include "check.h"

using namespace cudaprefill;
using test::message_of;

namespace {

constexpr int32_t kBlockSize = 4;

struct Core {
  explicit Core(int32_t num_blocks, bool prefix_caching = true)
      : pool(num_blocks, kBlockSize, prefix_caching, BlockHasher(HashKey{1, 2})), table(pool) {}

  Row add(std::vector<TokenId> prompt, Limits limits = {1000, 0, {}, {}}) {
    return table.add(std::move(prompt), std::move(limits), "");
  }
  // Computes the next `num_tokens` tokens as a step of their own.
  void compute(Row row, int32_t num_tokens) {
    CHECK(table.reserve(row, num_tokens) == num_tokens);
    finish_step({row});
  }
  void finish_step(std::vector<Row> rows) {
    table.complete(rows);
    table.end_step();
    table.check();
  }
  std::vector<Finished> append(std::vector<Row> rows, std::vector<int64_t> tokens) {
    return table.append(rows, tokens);
  }

  BlockPool pool;
  RequestTable table;
};

std::vector<TokenId> counting(int32_t count, TokenId first = 0) {
  std::vector<TokenId> token_ids;
  for (int32_t i = 0; i < count; ++i) token_ids.push_back(first + i);
  return token_ids;
}

}  // namespace

TEST(an_empty_prompt_is_refused) {
  Core core(1);
  CHECK(message_of<std::invalid_argument>([&] { core.add({}); }) == "the prompt has no tokens");
}

TEST(a_second_prompt_shares_the_full_blocks_of_the_first_and_computes_at_least_one_token) {
  Core core(8);
  const Row first = core.add(counting(8));
  CHECK(core.table.admit(first, 0).hit_tokens == 0);
  core.compute(first, 8);
  const Row second = core.add(counting(8));
  const Admission admission = core.table.admit(second, 0);
  CHECK(admission.admitted && admission.hit_tokens == 4 && admission.needed == 1);
  CHECK(core.table.row(second).blocks[0] == core.table.row(first).blocks[0]);
  core.compute(second, 4);
  // The block that both computed is held once.
  CHECK(core.table.row(second).blocks == core.table.row(first).blocks);
  CHECK(core.pool.num_used() == 2);
}

TEST(blocks_are_published_when_their_kv_is_written_and_not_before) {
  Core core(8);
  const Row first = core.add(counting(8));
  core.table.admit(first, 0);
  core.table.reserve(first, 8);
  const Row second = core.add(counting(8));
  CHECK(core.table.admit(second, 0).hit_tokens == 0);
}

TEST(an_admission_counts_what_others_were_promised_and_the_headroom) {
  Core core(4, false);
  const Row first = core.add(counting(8));
  const Row second = core.add(counting(9));
  CHECK(core.table.admit(first, 0).admitted);
  CHECK(core.table.num_promised_blocks() == 2);
  const Admission refused = core.table.admit(second, 0);
  CHECK(!refused.admitted && refused.needed == 3 && refused.available == 2);
  core.table.remove(first);
  CHECK(!core.table.admit(second, 2).admitted);
  CHECK(core.table.admit(second, 1).admitted);
  core.compute(second, 4);
  CHECK(core.table.num_promised_blocks() == 2);
}

TEST(a_cached_prefix_counts_as_needed_while_nobody_holds_it) {
  Core core(4);
  const Row first = core.add(counting(9));
  core.table.admit(first, 0);
  core.compute(first, 9);
  core.table.remove(first);
  CHECK(core.pool.num_cached() == 2 && core.pool.num_free() == 2);
  const Row second = core.add(counting(16));
  const Admission admission = core.table.admit(second, 0);
  CHECK(admission.admitted && admission.hit_tokens == 8 && admission.needed == 4 && admission.available == 4);
  core.compute(second, 8);
}

TEST(a_reservation_takes_what_there_is) {
  Core core(2, false);
  const Row row = core.add(counting(12));
  CHECK(core.table.reserve(row, 12) == 8);
  core.finish_step({row});
  CHECK(core.table.reserve(row, 4) == 0);
}

TEST(given_tokens_take_blocks_and_count_as_computed) {
  Core core(4);
  const Row row = core.add({-1, -2, -3, -4, -5, 7, 8});
  CHECK(core.table.admit(row, 0).needed == 2);
  core.table.give(row, 5);
  CHECK(core.table.row(row).num_computed == 5 && core.table.num_promised_blocks() == 0);
  const std::vector<BlockId> blocks = core.table.row(row).blocks;
  CHECK(core.pool.index().size() == 0);  // their KV is written in the step that follows
  core.compute(row, 2);
  CHECK(core.table.row(row).blocks == blocks && core.pool.index().size() == 1);

  const Row second = core.add({-1, -2, -3, -4, -5, 9});
  CHECK(core.table.admit(second, 0).hit_tokens == 4);
  CHECK(message_of<std::logic_error>([&] { core.table.give(second, 4); }) ==
        "row 1 cannot be given 4 tokens: it has 6 and computed 4, and 1 blocks are promised to it");
  CHECK(message_of<std::logic_error>([&] { core.table.give(second, 6); }) ==
        "row 1 cannot be given 6 tokens: it has 6 and computed 4, and 1 blocks are promised to it");
  core.table.give(second, 5);
  CHECK(core.table.row(second).num_computed == 5);
  core.table.preempt(second);
  CHECK(core.table.admit(second, 0).hit_tokens == 4);
  core.table.check();
}

TEST(a_fork_shares_all_blocks_until_one_of_the_two_writes) {
  Core core(4);
  const Row lead = core.add(counting(6));
  core.table.admit(lead, 0);
  core.compute(lead, 6);
  const Row sibling = core.table.fork(lead);
  CHECK(core.append({lead, sibling}, {100, 200}).empty());
  CHECK(core.pool.num_used() == 2);

  const std::vector<Row> both = {lead, sibling};
  const BlockId shared = core.table.row(lead).blocks[1];
  CHECK(core.table.reserve_decodes(both, 0) == 2);
  CHECK(core.table.copies().size() == 1);
  CHECK(core.table.copies()[0].source == shared);
  CHECK(core.table.copies()[0].destination == core.table.row(lead).blocks[1]);
  CHECK(core.table.row(sibling).blocks[1] == shared);  // the last holder writes in place
  core.table.check();
  core.finish_step(both);
  CHECK(core.table.copies().empty() && core.pool.num_used() == 3);
}

TEST(a_row_with_uncomputed_tokens_cannot_be_forked) {
  Core core(4);
  const Row row = core.add(counting(6));
  core.table.admit(row, 0);
  core.compute(row, 4);
  CHECK(message_of<std::logic_error>([&] { core.table.fork(row); }) ==
        "row 0 cannot be forked: 4 of its 6 tokens are computed");
}

TEST(the_source_of_a_copy_is_not_given_away_before_the_step_ends) {
  Core core(3);
  const Row lead = core.add(counting(3));
  core.table.admit(lead, 0);
  core.compute(lead, 3);
  const Row sibling = core.table.fork(lead);
  core.append({lead, sibling}, {100, 200});
  CHECK(core.table.reserve(lead, 1) == 1);
  const BlockId source = core.table.copies()[0].source;
  core.table.preempt(sibling);
  CHECK(core.pool.reference_count(source) == 1);
  CHECK(core.pool.allocate() != source && core.pool.allocate() == kNoBlock);
}

TEST(a_preempted_row_computes_its_output_again) {
  Core core(4, false);
  const Row row = core.add(counting(4));
  core.table.admit(row, 0);
  core.compute(row, 4);
  core.append({row}, {9});
  core.table.preempt(row);
  CHECK(core.pool.num_used() == 0);
  CHECK(core.table.admit(row, 0).needed == 2);
  core.compute(row, 5);
  CHECK(core.table.row(row).token_ids.back() == 9 && core.table.row(row).num_computed == 5);
}

TEST(a_row_removed_in_flight_keeps_its_blocks_and_its_number_until_the_step_ends) {
  Core core(4);
  const Row row = core.add(counting(4));
  core.table.admit(row, 0);
  core.table.reserve(row, 4);
  core.table.remove(row);
  core.table.remove(row);
  CHECK(core.pool.num_used() == 1);
  CHECK(core.add(counting(4)) != row);
  const std::vector<Row> rows = {row};
  core.table.complete(rows);
  CHECK(core.append({row}, {7}).empty());
  core.table.end_step();
  core.table.check();
  CHECK(core.pool.num_used() == 0 && core.pool.num_cached() == 0 && core.table.num_rows() == 1);
}

TEST(a_row_ends_by_eos_stop_token_or_length_and_never_before_its_minimum) {
  Core core(4);
  const Limits limits{8, 6, {1}, {2}};
  const Row row = core.add(counting(4, 10), limits);
  CHECK(core.append({row}, {1}).empty());  // five tokens: too early
  const auto eos = core.append({row}, {1});
  CHECK(eos.size() == 1 && eos[0].reason == FinishReason::kEos && eos[0].index == 0);
  const auto stop = core.append({kNoRow, row}, {0, 2});
  CHECK(stop.size() == 1 && stop[0].reason == FinishReason::kStopToken && stop[0].token == 2 && stop[0].index == 1);
  const auto length = core.append({row}, {3});
  CHECK(length.size() == 1 && length[0].reason == FinishReason::kLength);
}

TEST(after_a_reset_a_running_row_publishes_nothing_until_it_starts_anew) {
  Core core(6);
  const Row row = core.add(counting(12));
  core.table.admit(row, 0);
  core.compute(row, 4);
  core.pool.reset_prefix_cache();
  core.compute(row, 8);
  CHECK(core.pool.index().size() == 0);
  core.table.preempt(row);
  CHECK(core.table.admit(row, 0).hit_tokens == 0);
  core.compute(row, 12);
  CHECK(core.pool.index().size() == 3);
}

TEST(a_block_is_described_by_its_owners_and_its_tokens) {
  Core core(4);
  const Row row = core.add(counting(6, 30));
  core.table.admit(row, 0);
  core.compute(row, 6);
  const std::vector<BlockId> blocks = core.table.row(row).blocks;
  const BlockInfo full = core.table.describe(blocks[0]);
  CHECK(full.owners == std::vector<Row>{row} && full.hash && full.token_ids == counting(4, 30));
  const BlockInfo tail = core.table.describe(blocks[1]);
  CHECK(!tail.hash && tail.token_ids == counting(2, 34) && tail.state == BlockState::kActive);
  core.table.remove(row);
  CHECK(core.table.describe(blocks[0]).owners.empty() && core.table.describe(blocks[0]).token_ids.size() == 4);
  CHECK(message_of<std::out_of_range>([&] { core.table.describe(4); }) == "block 4 is not one of the pool's 4 blocks");
}

TEST(a_block_is_described_by_the_extra_keys_of_its_prefix) {
  Core core(4);
  const std::vector<std::pair<std::string, std::string>> parts = {{"cache_salt", ""},
                                                                  {"adapter", std::string("a\0b", 3)}};
  const Row row = core.table.add(counting(10), {1000, 0, {}, {}}, encode_extra_keys(parts));
  core.table.admit(row, 0);
  core.compute(row, 10);
  const std::vector<BlockId> blocks = core.table.row(row).blocks;
  for (const BlockId block : blocks) CHECK(decode_extra_keys(core.table.describe(block).extra_keys) == parts);
  core.table.remove(row);
  CHECK(decode_extra_keys(core.table.describe(blocks[1]).extra_keys) == parts);  // cached
  CHECK(core.table.describe(blocks[2]).extra_keys.empty());                      // free
}

TEST(computing_more_than_is_known_or_twice_in_a_step_is_an_error) {
  Core core(4);
  const Row row = core.add(counting(4));
  CHECK(message_of<std::logic_error>([&] { core.table.reserve(row, 5); }) ==
        "row 0 cannot compute 5 of 4 tokens while 0 are in flight");
  core.table.reserve(row, 2);
  CHECK(message_of<std::logic_error>([&] { core.table.reserve(row, 2); }) ==
        "row 0 cannot compute 2 of 4 tokens while 2 are in flight");
  CHECK(message_of<std::logic_error>([&] { core.table.preempt(row); }) == "row 0 is scheduled already");
  CHECK(message_of<std::out_of_range>([&] { core.table.remove(3); }) == "row 3 holds no request");
}
