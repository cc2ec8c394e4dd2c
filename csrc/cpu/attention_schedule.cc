#include "csrc/cpu/attention_schedule.h"

#include <algorithm>

namespace cudaprefill::cpu {
namespace {

// Few enough that the cuts cost nothing, enough that a thread which is held up leaves its work to others.
constexpr int64_t kSharesPerThread = 4;

int64_t share_count(int64_t total_cost, int64_t min_share_cost) {
  const int64_t threads = num_threads();
  if (threads == 1) return 1;
  return std::clamp<int64_t>(total_cost / min_share_cost, 1, threads * kSharesPerThread);
}

}  // namespace

AttentionSchedule::AttentionSchedule(const std::vector<AttentionItem>& items, int64_t min_share_cost,
                                     int32_t key_step) {
  int64_t total_cost = 0;
  for (const AttentionItem& item : items) total_cost += item.cost();
  if (total_cost == 0) return;
  const int64_t shares = share_count(total_cost, min_share_cost);
  const int64_t share_cost = (total_cost + shares - 1) / shares;

  pieces_.reserve(items.size() + shares);
  int64_t item_start = 0;  // on the line of all items
  for (const AttentionItem& item : items) {
    int32_t first_key = item.first_key;
    int64_t share_end = share_cost * (num_shares() + 1);
    while (item_start + item.cost() >= share_end) {
      const int64_t steps = (share_end - item_start + item.num_tokens * key_step / 2) / (item.num_tokens * key_step);
      const int32_t end_key = static_cast<int32_t>(std::min<int64_t>(item.first_key + steps * key_step, item.end_key));
      add_piece(item, first_key, end_key);
      first_key = std::max(first_key, end_key);
      share_ends_.push_back(static_cast<int64_t>(pieces_.size()));
      share_end += share_cost;
    }
    add_piece(item, first_key, item.end_key);
    item_start += item.cost();
  }
  if (share_ends_.empty() || share_ends_.back() < static_cast<int64_t>(pieces_.size())) {
    share_ends_.push_back(static_cast<int64_t>(pieces_.size()));
  }
}

void AttentionSchedule::add_piece(const AttentionItem& item, int32_t first_key, int32_t end_key) {
  if (first_key >= end_key) return;
  AttentionPiece piece{item, AttentionPiece::kWhole, AttentionPiece::kWhole};
  piece.item.first_key = first_key;
  piece.item.end_key = end_key;
  const bool is_whole = first_key == item.first_key && end_key == item.end_key;
  if (!is_whole) {
    if (first_key == item.first_key) splits_.push_back({item, num_partials_, 0});
    piece.split = static_cast<int32_t>(splits_.size()) - 1;
    piece.partial = num_partials_++;
    ++splits_.back().num_partials;
  }
  pieces_.push_back(piece);
}

}  // namespace cudaprefill::cpu
