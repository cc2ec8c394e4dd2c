#include "csrc/core/batch_builder.h"

#include <vector>

#include "check.h"

using namespace cudaprefill;
using test::message_of;

namespace {

template <typename T>
std::vector<T> copy_of(const T* data, int32_t count) {
  return std::vector<T>(data, data + count);
}

}  // namespace

TEST(a_mixed_step_is_laid_out_decodes_first) {
  BlockPool pool(8, 4, false, BlockHasher(HashKey{1, 2}));
  RequestTable table(pool);
  BatchBuilder builder(table, 16, 4, 32);
  const std::vector<Row> decodes = {table.add({10, 11, 12, 13}, {100, 0, {}, {}}, "")};
  table.reserve(decodes[0], 4);
  table.complete(decodes);
  table.append(decodes, std::vector<int64_t>{14});
  table.end_step();
  const std::vector<Row> chunks = {table.add({20, 21, 22, 23, 24, 25}, {100, 0, {}, {}}, ""),
                                   table.add({30, 31}, {100, 0, {}, {}}, "")};
  table.reserve(decodes[0], 1);
  table.reserve(chunks[0], 5);
  table.reserve(chunks[1], 2);
  builder.build(decodes, chunks);

  // The decode has blocks 0 and 1, the first chunk 2 and 3, the second 4.
  CHECK((copy_of(builder.token_ids(), builder.num_tokens()) == std::vector<int64_t>{14, 20, 21, 22, 23, 24, 30, 31}));
  CHECK((copy_of(builder.position_ids(), 8) == std::vector<int64_t>{4, 0, 1, 2, 3, 4, 0, 1}));
  CHECK((copy_of(builder.slot_mapping(), 8) == std::vector<int64_t>{4, 8, 9, 10, 11, 12, 16, 17}));
  CHECK((copy_of(builder.cu_seqlens_q(), builder.num_requests() + 1) == std::vector<int32_t>{0, 1, 6, 8}));
  CHECK((copy_of(builder.context_lens(), 3) == std::vector<int32_t>{5, 5, 2}));
  CHECK(builder.table_width() == 2);
  CHECK((copy_of(builder.block_table(), 5) == std::vector<int32_t>{0, 1, 2, 3, 4}));
  // The first chunk does not end its prompt.
  CHECK((copy_of(builder.logits_rows(), builder.num_sampled()) == std::vector<int64_t>{0, 7}));
  CHECK((copy_of(builder.logits_requests(), builder.num_sampled()) == std::vector<int64_t>{0, 2}));
  CHECK(builder.num_copies() == 0);
}

TEST(slots_beyond_two_to_the_31_are_right) {
  constexpr int32_t kNumBlocks = 40'000;
  constexpr int32_t kBlockSize = 65'536;
  BlockPool pool(kNumBlocks, kBlockSize, false, BlockHasher(HashKey{1, 2}));
  for (int32_t i = 0; i < kNumBlocks - 1; ++i) pool.allocate();
  RequestTable table(pool);
  BatchBuilder builder(table, 2, 1, kBlockSize);
  const std::vector<Row> chunk = {table.add({5, 6}, {100, 0, {}, {}}, "")};
  table.reserve(chunk[0], 2);
  builder.build({}, chunk);
  CHECK(builder.slot_mapping()[1] == int64_t{39'999} * 65'536 + 1);
}

TEST(a_step_that_does_not_fit_is_an_error_with_its_numbers) {
  BlockPool pool(8, 4, false, BlockHasher(HashKey{1, 2}));
  RequestTable table(pool);
  BatchBuilder builder(table, 3, 1, 32);
  const std::vector<Row> chunk = {table.add({1, 2, 3, 4}, {100, 0, {}, {}}, "")};
  table.reserve(chunk[0], 4);
  CHECK(message_of<std::length_error>([&] { builder.build({}, chunk); }) ==
        "a step of 4 tokens, 1 requests and tables of 1 blocks does not fit into a batch of 3, 1 and 8");
}
