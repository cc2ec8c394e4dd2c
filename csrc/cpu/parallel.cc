#include "csrc/cpu/parallel.h"

#include <torch/csrc/stable/ops.h>

#include <atomic>
#include <exception>
#include <mutex>
#include <vector>

namespace cudaprefill::cpu {
namespace {

// The items of one thread that nobody has taken yet. The thread takes them from the front, others from the back.
class ItemRange {
 public:
  void assign(int64_t front, int64_t back) {
    bounds_.store(pack(static_cast<uint32_t>(front), static_cast<uint32_t>(back)), std::memory_order_relaxed);
  }

  // The next item, or -1 when none is left.
  int64_t take_front() {
    return take([](uint32_t& front, uint32_t&) { return front++; });
  }
  int64_t take_back() {
    return take([](uint32_t&, uint32_t& back) { return --back; });
  }

 private:
  static uint64_t pack(uint32_t front, uint32_t back) { return static_cast<uint64_t>(front) << 32 | back; }

  template <class Take>
  int64_t take(const Take& take_one) {
    uint64_t bounds = bounds_.load(std::memory_order_relaxed);
    for (;;) {
      uint32_t front = static_cast<uint32_t>(bounds >> 32), back = static_cast<uint32_t>(bounds);
      if (front >= back) return -1;
      const int64_t item = take_one(front, back);
      if (bounds_.compare_exchange_weak(bounds, pack(front, back), std::memory_order_relaxed)) return item;
    }
  }

  // Alone in its cache line, so that threads at work on their own ranges do not disturb each other.
  alignas(64) std::atomic<uint64_t> bounds_;
};

}  // namespace

int64_t num_threads() { return torch::stable::get_num_threads(); }

void run_parallel_for(int64_t count, int64_t grain, void (*body)(int64_t begin, int64_t end, const void* context),
                      const void* context) {
  // An exception that crosses torch's C interface would be printed and lose its message.
  std::exception_ptr error;
  std::mutex error_mutex;
  torch::stable::parallel_for(0, count, grain, [&](int64_t begin, int64_t end) {
    try {
      body(begin, end, context);
    } catch (...) {
      const std::lock_guard lock(error_mutex);
      if (!error) error = std::current_exception();
    }
  });
  if (error) std::rethrow_exception(error);
}

void run_parallel_items(int64_t count, void (*body)(int64_t item, const void* context), const void* context) {
  const int64_t threads = std::min(count, num_threads());
  std::vector<ItemRange> ranges(threads);
  for (int64_t t = 0; t < threads; ++t) ranges[t].assign(t * count / threads, (t + 1) * count / threads);
  parallel_for(threads, 1, [&](int64_t first, int64_t last) {
    for (int64_t t = first; t < last; ++t) {
      for (int64_t i = ranges[t].take_front(); i >= 0; i = ranges[t].take_front()) body(i, context);
      for (int64_t other = (t + 1) % threads; other != t; other = (other + 1) % threads) {
        for (int64_t i = ranges[other].take_back(); i >= 0; i = ranges[other].take_back()) body(i, context);
      }
    }
  });
}

}  // namespace cudaprefill::cpu
