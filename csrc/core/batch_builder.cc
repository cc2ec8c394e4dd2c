#include "csrc/core/batch_builder.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace cudaprefill {
namespace {

// Not zeroed: of the largest arrays most pages are never touched.
template <typename T>
std::unique_ptr<T[]> array_of(size_t size) {
  return std::make_unique_for_overwrite<T[]>(size);
}

}  // namespace

BatchBuilder::BatchBuilder(const RequestTable& table, int32_t max_tokens, int32_t max_requests, int32_t max_length)
    : table_(table),
      max_tokens_(max_tokens),
      max_requests_(max_requests),
      max_blocks_(std::min(blocks_for(max_length, table.pool().block_size()), table.pool().num_blocks())),
      token_ids_(array_of<int64_t>(max_tokens)),
      position_ids_(array_of<int64_t>(max_tokens)),
      slot_mapping_(array_of<int64_t>(max_tokens)),
      cu_seqlens_q_(array_of<int32_t>(max_requests + 1)),
      context_lens_(array_of<int32_t>(max_requests)),
      block_table_(array_of<int32_t>(static_cast<size_t>(max_requests) * max_blocks_)),
      logits_rows_(array_of<int64_t>(max_requests)),
      logits_requests_(array_of<int64_t>(max_requests)),
      block_copies_(array_of<int64_t>(2 * static_cast<size_t>(max_requests))) {}

void BatchBuilder::build(std::span<const Row> decodes, std::span<const Row> chunks) {
  num_tokens_ = num_requests_ = table_width_ = num_sampled_ = num_copies_ = 0;
  measure(decodes);
  measure(chunks);
  const size_t num_requests = decodes.size() + chunks.size();
  if (num_tokens_ > max_tokens_ || num_requests > static_cast<size_t>(max_requests_) || table_width_ > max_blocks_ ||
      table_.copies().size() > static_cast<size_t>(max_requests_)) {
    throw std::length_error("a step of " + std::to_string(num_tokens_) + " tokens, " + std::to_string(num_requests) +
                            " requests and tables of " + std::to_string(table_width_) +
                            " blocks does not fit into a batch of " + std::to_string(max_tokens_) + ", " +
                            std::to_string(max_requests_) + " and " + std::to_string(max_blocks_));
  }
  num_tokens_ = 0;
  cu_seqlens_q_[0] = 0;
  for (const Row row : decodes) lay_out(table_.row(row));
  for (const Row row : chunks) lay_out(table_.row(row));
  for (const BlockCopy& copy : table_.copies()) {
    block_copies_[2 * num_copies_] = copy.source;
    block_copies_[2 * num_copies_ + 1] = copy.destination;
    ++num_copies_;
  }
}

void BatchBuilder::measure(std::span<const Row> rows) {
  for (const Row row : rows) {
    const RequestRow& request = table_.row(row);
    num_tokens_ += request.num_scheduled;
    const int32_t context_len = request.num_computed + request.num_scheduled;
    table_width_ = std::max(table_width_, blocks_for(context_len, table_.pool().block_size()));
  }
}

void BatchBuilder::lay_out(const RequestRow& request) {
  const int32_t size = table_.pool().block_size();
  const int32_t context_len = request.num_computed + request.num_scheduled;
  for (int32_t position = request.num_computed; position < context_len; ++position, ++num_tokens_) {
    token_ids_[num_tokens_] = request.token_ids[position];
    position_ids_[num_tokens_] = position;
    slot_mapping_[num_tokens_] = static_cast<int64_t>(request.blocks[position / size]) * size + position % size;
  }
  std::copy_n(request.blocks.data(), blocks_for(context_len, size),
              &block_table_[static_cast<size_t>(num_requests_) * table_width_]);
  context_lens_[num_requests_] = context_len;
  if (context_len == request.num_tokens()) {
    logits_rows_[num_sampled_] = num_tokens_ - 1;
    logits_requests_[num_sampled_++] = num_requests_;
  }
  cu_seqlens_q_[++num_requests_] = num_tokens_;
}

}  // namespace cudaprefill
