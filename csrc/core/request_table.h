// What a step needs to know of each request, so that nothing per decode happens in Python.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "csrc/core/block_hash.h"
#include "csrc/core/block_pool.h"
#include "csrc/core/types.h"

namespace cudaprefill {

// When a request ends by itself. Lengths count prompt and output tokens.
struct Limits {
  int32_t max_length = 0;               // the request ends when it has this many tokens
  int32_t min_length = 0;               // no token ends it before it has this many
  std::vector<TokenId> eos_token_ids;   // end it without a stop reason
  std::vector<TokenId> stop_token_ids;  // end it, and are the stop reason
};

enum class FinishReason : uint8_t { kNone, kEos, kStopToken, kLength };

struct Finished {
  int32_t index;  // into the rows that were given tokens
  FinishReason reason;
  TokenId token;  // the last one
};

struct Admission {
  bool admitted;
  int32_t hit_tokens;  // found in the prefix index, and held if admitted
  int32_t needed;      // blocks that the request would take from the free and cached ones
  int32_t available;   // blocks that it might take
};

struct BlockCopy {
  BlockId source;
  BlockId destination;
};

// All there is to say about one block.
struct BlockInfo {
  BlockState state;
  int32_t reference_count;
  uint64_t last_use;            // the step in which it was last taken, shared or released
  std::optional<Hash128> hash;  // while published
  std::vector<Row> owners;      // rows whose tables name it
  std::vector<TokenId>
      token_ids;           // those with KV in it; unknown, thus empty, once nobody owns it and it is not published
  std::string extra_keys;  // of their prefix, as encode_extra_keys gives them; empty where the tokens are unknown
};

// One request. Its tokens are [0, num_computed) with KV in `blocks`, [.., + num_scheduled) being computed by the step
// in flight, and the rest known but not computed: the prompt's remainder, or the token that was sampled last.
struct RequestRow {
  std::vector<TokenId> token_ids;  // prompt and output; those below zero are virtual, and no token of a vocabulary
  std::vector<BlockId> blocks;     // the block table
  int32_t num_prompt_tokens = 0;
  int32_t num_computed = 0;
  int32_t num_scheduled = 0;
  int32_t num_promised = 0;  // blocks that its prefill will still take
  Limits limits;

  // Its chain through the prefix index: the first `num_published` blocks of the table, ending in `parent`.
  std::string extra_keys;
  std::vector<Hash128> hashes;  // of its full blocks, computed once
  int32_t num_published = 0;
  Publication parent = kNotPublished;
  uint64_t epoch = 0;  // the pool's, when the chain began

  bool live = false;
  bool doomed = false;  // removed while its step is in flight: goes when the step ends

  int32_t num_tokens() const { return static_cast<int32_t>(token_ids.size()); }
};

// Rows of requests over one block pool. A step is:
//     admit, give                 hits, and tokens whose KV is not computed but given
//     reserve / reserve_decodes   blocks for what the step computes
//     (the batch builder reads the rows, the model runs)
//     complete                    the reserved tokens now have KV: full blocks are published
//     fork, append                sampled tokens
//     end_step                    removed rows go; all there is after a step that failed
class RequestTable {
 public:
  explicit RequestTable(BlockPool& pool) : pool_(pool) {}

  // Throws std::invalid_argument for an empty prompt. `extra_keys` as encode_extra_keys gives them.
  Row add(std::vector<TokenId> prompt, Limits limits, std::string extra_keys);
  // A row with the same tokens and blocks, which are shared until one of the two writes into the last one. Only between
  // complete and append.
  Row fork(Row row);
  // Gives the row's blocks back. While the step in flight computes the row, it stays until end_step.
  void remove(Row row);

  // Holds the row's cached prefix and promises it the blocks of all its other tokens, if these leave `headroom` of the
  // available ones untouched. At least one token is left to compute.
  Admission admit(Row row, int32_t headroom);
  // Takes blocks for the first `num_tokens` tokens of a row that was just admitted, which holds fewer by its hits. They
  // count as computed: the caller writes their KV before the step's, and not all of the row's tokens are given so.
  void give(Row row, int32_t num_tokens);
  // Takes blocks for the next `num_tokens` tokens, as far as there are any, and schedules the tokens that have a slot.
  // Returns how many. A shared block that would be written is replaced by a copy.
  int32_t reserve(Row row, int32_t num_tokens);
  // One token for each of rows[begin..]. Returns the index of the first that found no block, or rows.size().
  size_t reserve_decodes(std::span<const Row> rows, size_t begin);
  // Gives the row's blocks back; it must be admitted again, and computes all its tokens again.
  void preempt(Row row);

  void complete(std::span<const Row> rows);
  // Appends tokens[i] to rows[i] and returns those that this ends. Rows that are kNoRow or removed are passed over.
  std::vector<Finished> append(std::span<const Row> rows, std::span<const int64_t> tokens);
  void end_step();

  // The low halves of the chained hashes of the row's full blocks, computed or not.
  std::vector<uint64_t> block_hashes(Row row);

  const RequestRow& row(Row row) const;
  int32_t num_rows() const { return static_cast<int32_t>(rows_.size() - free_rows_.size()); }
  int32_t num_promised_blocks() const { return num_promised_; }
  // To be done, all at once, before the step's KV is written. Their sources are held until then.
  std::span<const BlockCopy> copies() const { return copies_; }
  // Tokens whose KV the blocks in use hold, those of shared blocks counted once. Looks through all tables.
  int64_t count_used_tokens() const;
  // Looks through all tables: for a person who asks about a block. Throws std::out_of_range for an id that is no block.
  BlockInfo describe(BlockId block) const;
  const BlockPool& pool() const { return pool_; }

  // Checks the pool, every reference count and every row. Throws std::logic_error naming the first broken invariant.
  void check() const;

 private:
  RequestRow& live_row(Row row);
  Row new_row();
  void erase(Row row);
  void release_blocks(RequestRow& request);
  void set_promised(RequestRow& request, int32_t blocks);
  const Hash128& hash_of(RequestRow& request, int32_t block_index);
  BlockKey key_of(RequestRow& request, int32_t block_index, Publication parent);
  void publish_full_blocks(RequestRow& request);
  void release_copy_sources();
  // Takes the next block of the row's table. False if there is none.
  bool take_block(RequestRow& request);
  bool own_last_block(RequestRow& request);
  bool is_shared(BlockId block) const;
  void check_row(const RequestRow& request) const;

  BlockPool& pool_;
  std::vector<RequestRow> rows_;
  std::vector<Row> free_rows_;
  std::vector<Row> doomed_rows_;
  std::vector<BlockCopy> copies_;
  std::vector<BlockId> hits_;  // of the admission at hand
  int32_t num_promised_ = 0;
};

}  // namespace cudaprefill
