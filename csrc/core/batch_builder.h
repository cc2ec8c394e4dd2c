// Lays one step out for the kernels.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "csrc/core/request_table.h"
#include "csrc/core/types.h"

namespace cudaprefill {

// Fills arrays that are allocated once; their contents hold until the next build. T tokens of B requests, decodes
// first, R of which are sampled, with block tables of M blocks and C copies:
//
//   token_ids, position_ids, slot_mapping [T] int64: slot = block * block_size + offset
//
//   cu_seqlens_q [B + 1] int32: request b has the tokens cu_seqlens_q[b] .. cu_seqlens_q[b + 1]
//
//   context_lens [B] int32: computed before plus computed now
//
//   block_table [B, M] int32: valid up to ceil(context_len / block_size)
//
//   logits_rows, logits_requests [R] int64: the last token of each request whose tokens are then all computed; its b
//
//   block_copies [C, 2] int64: source, destination
class BatchBuilder {
 public:
  // The most tokens and requests of a step, and the most tokens of a request.
  BatchBuilder(const RequestTable& table, int32_t max_tokens, int32_t max_requests, int32_t max_length);

  // Takes the tokens that are scheduled in the table: decodes first, then chunks. Throws std::length_error when they
  // are more than the arrays hold.
  void build(std::span<const Row> decodes, std::span<const Row> chunks);

  int32_t num_tokens() const { return num_tokens_; }      // T
  int32_t num_requests() const { return num_requests_; }  // B
  int32_t table_width() const { return table_width_; }    // M
  int32_t num_sampled() const { return num_sampled_; }    // R
  int32_t num_copies() const { return num_copies_; }      // C
  const int64_t* token_ids() const { return token_ids_.get(); }
  const int64_t* position_ids() const { return position_ids_.get(); }
  const int64_t* slot_mapping() const { return slot_mapping_.get(); }
  const int32_t* cu_seqlens_q() const { return cu_seqlens_q_.get(); }
  const int32_t* context_lens() const { return context_lens_.get(); }
  const int32_t* block_table() const { return block_table_.get(); }
  const int64_t* logits_rows() const { return logits_rows_.get(); }
  const int64_t* logits_requests() const { return logits_requests_.get(); }
  const int64_t* block_copies() const { return block_copies_.get(); }

 private:
  void measure(std::span<const Row> rows);
  void lay_out(const RequestRow& request);

  const RequestTable& table_;
  int32_t max_tokens_;
  int32_t max_requests_;
  int32_t max_blocks_;
  int32_t num_tokens_ = 0;
  int32_t num_requests_ = 0;
  int32_t table_width_ = 0;
  int32_t num_sampled_ = 0;
  int32_t num_copies_ = 0;
  std::unique_ptr<int64_t[]> token_ids_;
  std::unique_ptr<int64_t[]> position_ids_;
  std::unique_ptr<int64_t[]> slot_mapping_;
  std::unique_ptr<int32_t[]> cu_seqlens_q_;
  std::unique_ptr<int32_t[]> context_lens_;
  std::unique_ptr<int32_t[]> block_table_;
  std::unique_ptr<int64_t[]> logits_rows_;
  std::unique_ptr<int64_t[]> logits_requests_;
  std::unique_ptr<int64_t[]> block_copies_;
};

}  // namespace cudaprefill
