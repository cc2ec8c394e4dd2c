// The work of one attention call, cut into equal shares.
//
// All (query rows, KV head) items of a batch are laid end to end, each as long as its arithmetic, and the line is cut
// into shares of equal length that the threads take one after the other. A cut inside an item splits its keys: each
// side yields a partial result, and whoever ends the last side merges them, in the order of the keys.
//
//     item 0      item 1                     item 2   3  4
//     |-----------|--------------------------|--------|--|--|
//     share 0          share 1         share 2          share 3
//
// So one long request among short ones, or fewer items than threads, still keep every thread busy, and nothing that is
// kept grows with the context: there are at most two partial results a share.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "csrc/cpu/parallel.h"

namespace cudaprefill::cpu {

// Consecutive new tokens of one request, in all query heads of one KV head, against the keys first_key .. end_key - 1.
struct AttentionItem {
  int32_t request, kv_head;
  int32_t first_token, num_tokens;  // counted from the first new token of the request
  int32_t first_key, end_key;

  int64_t cost() const { return static_cast<int64_t>(num_tokens) * (end_key - first_key); }
};

// An item, or those of its keys that fall into one share.
struct AttentionPiece {
  static constexpr int32_t kWhole = -1;

  AttentionItem item;
  int32_t split;    // which split item this is a part of, or kWhole
  int32_t partial;  // which partial result it yields, or kWhole
};

class AttentionSchedule {
 public:
  // Cuts lie a multiple of `key_step` keys after the first key of an item. No share costs less than `min_share_cost`
  // (but for rounding), so little work stays in the calling thread.
  AttentionSchedule(const std::vector<AttentionItem>& items, int64_t min_share_cost, int32_t key_step);

  // Partial results over the whole call; the parts of a split have consecutive numbers, in the order of their keys.
  int32_t num_partials() const { return num_partials_; }

  // In each thread that takes part, make_worker() returns a worker of that thread; worker.attend(piece) is called for
  // every piece, and worker.merge(item, first_partial, num_partials) for every split item once its parts are done.
  template <class MakeWorker>
  void run(const MakeWorker& make_worker) const;

 private:
  struct Split {
    AttentionItem item;
    int32_t first_partial, num_partials;
  };

  template <class Worker>
  void run_share(int64_t share, Worker& worker, std::atomic<int32_t>* parts_done) const;
  void add_piece(const AttentionItem& item, int32_t first_key, int32_t end_key);

  int64_t num_shares() const { return static_cast<int64_t>(share_ends_.size()); }

  std::vector<AttentionPiece> pieces_;
  std::vector<int64_t> share_ends_;  // the pieces of share s end before pieces_[share_ends_[s]]
  std::vector<Split> splits_;
  int32_t num_partials_ = 0;
};

template <class MakeWorker>
void AttentionSchedule::run(const MakeWorker& make_worker) const {
  const auto parts_done = std::make_unique<std::atomic<int32_t>[]>(splits_.size());
  std::atomic<int64_t> next_share = 0;
  parallel_for(num_shares(), 1, [&](int64_t, int64_t) {
    auto worker = make_worker();
    for (int64_t share = next_share++; share < num_shares(); share = next_share++) {
      run_share(share, worker, parts_done.get());
    }
  });
}

template <class Worker>
void AttentionSchedule::run_share(int64_t share, Worker& worker, std::atomic<int32_t>* parts_done) const {
  for (int64_t p = share == 0 ? 0 : share_ends_[share - 1]; p < share_ends_[share]; ++p) {
    const AttentionPiece& piece = pieces_[p];
    worker.attend(piece);
    if (piece.split == AttentionPiece::kWhole) continue;
    const Split& split = splits_[piece.split];
    if (parts_done[piece.split].fetch_add(1, std::memory_order_acq_rel) + 1 == split.num_partials) {
      worker.merge(split.item, split.first_partial, split.num_partials);
    }
  }
}

}  // namespace cudaprefill::cpu
