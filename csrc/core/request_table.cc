#include "csrc/core/request_table.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace cudaprefill {
namespace {

bool contains(const std::vector<TokenId>& token_ids, TokenId token) {
  return std::ranges::find(token_ids, token) != token_ids.end();
}

FinishReason finish_reason(const RequestRow& request) {
  const TokenId last = request.token_ids.back();
  if (request.num_tokens() >= request.limits.min_length) {
    if (contains(request.limits.eos_token_ids, last)) return FinishReason::kEos;
    if (contains(request.limits.stop_token_ids, last)) return FinishReason::kStopToken;
  }
  return request.num_tokens() >= request.limits.max_length ? FinishReason::kLength : FinishReason::kNone;
}

}  // namespace

const RequestRow& RequestTable::row(Row row) const {
  if (row < 0 || row >= static_cast<Row>(rows_.size()) || !rows_[row].live) {
    throw std::out_of_range("row " + std::to_string(row) + " holds no request");
  }
  return rows_[row];
}

RequestRow& RequestTable::live_row(Row row) { return const_cast<RequestRow&>(std::as_const(*this).row(row)); }

Row RequestTable::new_row() {
  if (free_rows_.empty()) {
    rows_.emplace_back();
    return static_cast<Row>(rows_.size()) - 1;
  }
  const Row row = free_rows_.back();
  free_rows_.pop_back();
  return row;
}

Row RequestTable::add(std::vector<TokenId> prompt, Limits limits, std::string extra_keys) {
  if (prompt.empty()) throw std::invalid_argument("the prompt has no tokens");
  const Row row = new_row();
  RequestRow& request = rows_[row];
  request.num_prompt_tokens = static_cast<int32_t>(prompt.size());
  request.token_ids = std::move(prompt);
  request.limits = std::move(limits);
  request.extra_keys = std::move(extra_keys);
  request.live = true;
  return row;
}

Row RequestTable::fork(Row row) {
  if (live_row(row).num_computed != live_row(row).num_tokens()) {
    throw std::logic_error("row " + std::to_string(row) +
                           " cannot be forked: " + std::to_string(live_row(row).num_computed) + " of its " +
                           std::to_string(live_row(row).num_tokens()) + " tokens are computed");
  }
  const Row sibling = new_row();
  rows_[sibling] = rows_[row];
  for (const BlockId block : rows_[sibling].blocks) pool_.share(block);
  return sibling;
}

void RequestTable::remove(Row row) {
  RequestRow& request = live_row(row);
  if (request.doomed) return;
  if (request.num_scheduled == 0) return erase(row);
  request.doomed = true;
  doomed_rows_.push_back(row);
}

void RequestTable::erase(Row row) {
  release_blocks(rows_[row]);
  rows_[row] = {};
  free_rows_.push_back(row);
}

// From the last block to the first: the pool evicts in the order of release, and tails must go before heads.
void RequestTable::release_blocks(RequestRow& request) {
  for (size_t i = request.blocks.size(); i-- > 0;) pool_.release(request.blocks[i]);
  request.blocks.clear();
  request.num_published = 0;
  request.parent = kNotPublished;
  set_promised(request, 0);
}

void RequestTable::set_promised(RequestRow& request, int32_t blocks) {
  num_promised_ += blocks - request.num_promised;
  request.num_promised = blocks;
}

const Hash128& RequestTable::hash_of(RequestRow& request, int32_t block_index) {
  const int32_t size = pool_.block_size();
  const std::span<const TokenId> token_ids = request.token_ids;
  while (static_cast<int32_t>(request.hashes.size()) <= block_index) {
    const Hash128 parent = request.hashes.empty() ? pool_.hasher().root(request.extra_keys) : request.hashes.back();
    const auto block = token_ids.subspan(request.hashes.size() * static_cast<size_t>(size), size);
    request.hashes.push_back(pool_.hasher().chain(parent, block));
  }
  return request.hashes[block_index];
}

std::vector<uint64_t> RequestTable::block_hashes(Row row) {
  RequestRow& request = live_row(row);
  std::vector<uint64_t> hashes(request.num_tokens() / pool_.block_size());
  for (size_t i = 0; i < hashes.size(); ++i) hashes[i] = hash_of(request, static_cast<int32_t>(i)).low;
  return hashes;
}

BlockKey RequestTable::key_of(RequestRow& request, int32_t block_index, Publication parent) {
  const size_t size = pool_.block_size();
  return {hash_of(request, block_index), parent,
          std::span<const TokenId>(request.token_ids).subspan(block_index * size, size), request.extra_keys};
}

Admission RequestTable::admit(Row row, int32_t headroom) {
  RequestRow& request = live_row(row);
  if (!request.blocks.empty()) throw std::logic_error("row " + std::to_string(row) + " is admitted already");
  const int32_t size = pool_.block_size();
  hits_.clear();
  Publication parent = kNotPublished;
  int32_t idle_hits = 0;  // cached blocks nobody holds: holding them makes them unavailable to others
  if (pool_.prefix_caching()) {
    const int32_t most_hits = (request.num_tokens() - 1) / size;
    for (int32_t i = 0; i < most_hits; ++i) {
      const BlockId block = pool_.index().find(key_of(request, i, parent));
      if (block == kNoBlock) break;
      hits_.push_back(block);
      parent = pool_.index().publication(block);
      if (pool_.reference_count(block) == 0) ++idle_hits;
    }
  }
  const int32_t num_hits = static_cast<int32_t>(hits_.size());
  const int32_t to_compute = blocks_for(request.num_tokens(), size) - num_hits;
  Admission admission{false, num_hits * size, to_compute + idle_hits,
                      std::max(0, pool_.num_available() - num_promised_ - headroom)};
  if (admission.needed > admission.available) return admission;
  admission.admitted = true;
  for (const BlockId block : hits_) pool_.share(block);
  request.blocks.assign(hits_.begin(), hits_.end());
  request.num_computed = admission.hit_tokens;
  request.num_published = num_hits;
  request.parent = parent;
  request.epoch = pool_.epoch();
  set_promised(request, to_compute);
  return admission;
}

bool RequestTable::is_shared(BlockId block) const {
  int32_t holders = pool_.reference_count(block);
  // The copies are made before anything is written, so they do not stand in the way of writing to their source.
  for (const BlockCopy& copy : copies_) holders -= copy.source == block;
  return holders > 1;
}

// Makes the block that holds the next slot the request's own. False if that takes a block and there is none.
bool RequestTable::own_last_block(RequestRow& request) {
  if (request.num_computed % pool_.block_size() == 0) return true;
  BlockId& last = request.blocks[request.num_computed / pool_.block_size()];
  if (pool_.reference_count(last) == 1 || !is_shared(last)) return true;
  const BlockId copy = pool_.allocate(pool_.holds_virtual_tokens(last));
  if (copy == kNoBlock) return false;
  copies_.push_back({last, copy});  // the request's reference to the source goes to the copy
  last = copy;
  return true;
}

bool RequestTable::take_block(RequestRow& request) {
  const TokenId first = request.token_ids[request.blocks.size() * static_cast<size_t>(pool_.block_size())];
  const BlockId block = pool_.allocate(/*virtual_tokens=*/first < 0);
  if (block == kNoBlock) return false;
  request.blocks.push_back(block);
  if (request.num_promised > 0) set_promised(request, request.num_promised - 1);
  return true;
}

void RequestTable::give(Row row, int32_t num_tokens) {
  RequestRow& request = live_row(row);
  const int32_t size = pool_.block_size();
  const int32_t num_blocks = static_cast<int32_t>(request.blocks.size());
  const int32_t taken = blocks_for(num_tokens, size) - num_blocks;
  // An admission promises its blocks, and nobody has taken any since.
  if (request.num_scheduled > 0 || request.num_computed != num_blocks * size || num_tokens <= request.num_computed ||
      num_tokens >= request.num_tokens() || taken > request.num_promised || taken > pool_.num_available()) {
    throw std::logic_error("row " + std::to_string(row) + " cannot be given " + std::to_string(num_tokens) +
                           " tokens: it has " + std::to_string(request.num_tokens()) + " and computed " +
                           std::to_string(request.num_computed) + ", and " + std::to_string(request.num_promised) +
                           " blocks are promised to it");
  }
  for (int32_t i = 0; i < taken; ++i) take_block(request);
  request.num_computed = num_tokens;
}

int32_t RequestTable::reserve(Row row, int32_t num_tokens) {
  RequestRow& request = live_row(row);
  if (num_tokens < 1 || request.num_scheduled > 0 || num_tokens > request.num_tokens() - request.num_computed) {
    throw std::logic_error("row " + std::to_string(row) + " cannot compute " + std::to_string(num_tokens) + " of " +
                           std::to_string(request.num_tokens() - request.num_computed) + " tokens while " +
                           std::to_string(request.num_scheduled) + " are in flight");
  }
  if (!own_last_block(request)) return 0;
  const int32_t size = pool_.block_size();
  const int32_t wanted = blocks_for(request.num_computed + num_tokens, size);
  while (static_cast<int32_t>(request.blocks.size()) < wanted && take_block(request)) {
  }
  const int32_t num_slots = static_cast<int32_t>(request.blocks.size()) * size;
  request.num_scheduled = std::min(num_tokens, num_slots - request.num_computed);
  return request.num_scheduled;
}

size_t RequestTable::reserve_decodes(std::span<const Row> rows, size_t begin) {
  for (size_t i = begin; i < rows.size(); ++i) {
    if (reserve(rows[i], 1) == 0) return i;
  }
  return rows.size();
}

void RequestTable::preempt(Row row) {
  RequestRow& request = live_row(row);
  if (request.num_scheduled > 0) throw std::logic_error("row " + std::to_string(row) + " is scheduled already");
  release_blocks(request);
  request.num_computed = 0;
}

void RequestTable::publish_full_blocks(RequestRow& request) {
  if (!pool_.prefix_caching() || request.epoch != pool_.epoch()) return;
  const int32_t num_full = request.num_computed / pool_.block_size();
  while (request.num_published < num_full) {
    const int32_t i = request.num_published++;
    request.blocks[i] = pool_.publish(request.blocks[i], key_of(request, i, request.parent));
    request.parent = pool_.index().publication(request.blocks[i]);
  }
}

void RequestTable::complete(std::span<const Row> rows) {
  release_copy_sources();
  for (const Row row : rows) {
    RequestRow& request = live_row(row);
    if (request.doomed) continue;
    request.num_computed += std::exchange(request.num_scheduled, 0);
    publish_full_blocks(request);
  }
}

std::vector<Finished> RequestTable::append(std::span<const Row> rows, std::span<const int64_t> tokens) {
  if (rows.size() != tokens.size()) {
    throw std::invalid_argument(std::to_string(tokens.size()) + " tokens for " + std::to_string(rows.size()) + " rows");
  }
  std::vector<Finished> finished;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] == kNoRow) continue;
    RequestRow& request = live_row(rows[i]);
    if (request.doomed) continue;
    request.token_ids.push_back(static_cast<TokenId>(tokens[i]));
    const FinishReason reason = finish_reason(request);
    if (reason != FinishReason::kNone) {
      finished.push_back({static_cast<int32_t>(i), reason, request.token_ids.back()});
    }
  }
  return finished;
}

// Before anything is published: such a block must not be released later than the head of its prefix.
void RequestTable::release_copy_sources() {
  for (const BlockCopy& copy : copies_) pool_.release(copy.source);
  copies_.clear();
}

void RequestTable::end_step() {
  release_copy_sources();
  for (const Row row : doomed_rows_) erase(row);
  doomed_rows_.clear();
}

// Those who share a block have all computed the same tokens of it: who computes more writes into a block of its own.
int64_t RequestTable::count_used_tokens() const {
  const int32_t size = pool_.block_size();
  std::vector<bool> counted(pool_.num_blocks(), false);
  int64_t tokens = 0;
  for (const RequestRow& request : rows_) {
    int32_t left = request.num_computed;
    for (const BlockId block : request.blocks) {
      if (left <= 0) break;
      if (!counted[block]) tokens += std::min(left, size);
      counted[block] = true;
      left -= size;
    }
  }
  return tokens;
}

BlockInfo RequestTable::describe(BlockId block) const {
  pool_.require_block(block);
  BlockInfo info{pool_.state(block), pool_.reference_count(block), pool_.last_use(block), std::nullopt, {}, {}, {}};
  for (Row row = 0; row < static_cast<Row>(rows_.size()); ++row) {
    const RequestRow& request = rows_[row];
    const auto found = std::ranges::find(request.blocks, block);
    if (found == request.blocks.end()) continue;
    info.owners.push_back(row);
    info.extra_keys = request.extra_keys;
    const ptrdiff_t begin = (found - request.blocks.begin()) * pool_.block_size();
    const ptrdiff_t end = std::min<ptrdiff_t>(begin + pool_.block_size(), request.num_computed);
    if (end - begin > static_cast<ptrdiff_t>(info.token_ids.size())) {
      info.token_ids.assign(request.token_ids.begin() + begin, request.token_ids.begin() + end);
    }
  }
  if (pool_.index().contains(block)) {
    info.hash = pool_.index().hash(block);
    const auto token_ids = pool_.index().token_ids(block);
    info.token_ids.assign(token_ids.begin(), token_ids.end());
    info.extra_keys = pool_.index().extra_keys(block);
  }
  return info;
}

void RequestTable::check() const {
  std::vector<int32_t> references(pool_.num_blocks(), 0);
  int32_t promised = 0;
  for (const RequestRow& request : rows_) {
    for (const BlockId block : request.blocks) ++references[block];
    promised += request.num_promised;
    check_row(request);
  }
  for (const BlockCopy& copy : copies_) ++references[copy.source];
  pool_.check(references);
  if (promised != num_promised_) {
    throw std::logic_error(std::to_string(promised) + " blocks are promised, counted " + std::to_string(num_promised_));
  }
}

void RequestTable::check_row(const RequestRow& request) const {
  const int32_t num_slots = static_cast<int32_t>(request.blocks.size()) * pool_.block_size();
  if (request.num_computed + request.num_scheduled > std::min(num_slots, request.num_tokens())) {
    throw std::logic_error("a request has " + std::to_string(num_slots) + " slots and " +
                           std::to_string(request.num_tokens()) + " tokens, but computes up to " +
                           std::to_string(request.num_computed + request.num_scheduled));
  }
  std::vector<BlockId> sorted = request.blocks;
  std::ranges::sort(sorted);
  if (std::ranges::adjacent_find(sorted) != sorted.end()) throw std::logic_error("a block table names a block twice");
  for (size_t i = 0; i < request.blocks.size(); ++i) {
    const bool is_virtual = request.token_ids[i * static_cast<size_t>(pool_.block_size())] < 0;
    if (pool_.holds_virtual_tokens(request.blocks[i]) != is_virtual) {
      throw std::logic_error("block " + std::to_string(request.blocks[i]) + " is marked as one of " +
                             (is_virtual ? "text, and holds virtual tokens" : "virtual tokens, and holds text"));
    }
  }
  if (request.epoch != pool_.epoch()) return;
  Publication parent = kNotPublished;
  for (int32_t i = 0; i < request.num_published; ++i) {
    const BlockId block = request.blocks[i];
    if (!pool_.index().contains(block) || pool_.index().parent(block) != parent) {
      throw std::logic_error("block " + std::to_string(block) + " of a table does not continue the block before it");
    }
    parent = pool_.index().publication(block);
  }
}

}  // namespace cudaprefill
