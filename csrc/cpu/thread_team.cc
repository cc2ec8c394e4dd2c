#include "csrc/cpu/thread_team.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

namespace cudaprefill::cpu {
namespace {

// How long a worker looks out for the next region before it goes to sleep, so that waking it is not the price of every
// op. While it does, it takes a core from the thread that serves clients. Other lengths have not been tried.
constexpr auto kLookout = std::chrono::microseconds(60);

inline void pause() {
#ifdef __x86_64__
  __builtin_ia32_pause();
#endif
}

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
  alignas(64) std::atomic<uint64_t> bounds_{0};
};

// What one region is about. Only who has passed the gate may look at it.
struct Region {
  void (*body)(int64_t item, const void* context);
  const void* context;
  int64_t num_ranges;
  std::exception_ptr error;
  std::mutex error_mutex;
};

// Workers come in while a region is open, and the opener leaves when none is inside any more:
//
//   gate = number of the region << 32 | open << 31 | workers inside
class ThreadTeam {
 public:
  // Never destroyed: its workers may sleep in it until the process ends.
  static ThreadTeam& instance() {
    static ThreadTeam* team = new ThreadTeam;
    return *team;
  }

  bool try_open() { return opener_.try_lock(); }

  void run(int64_t count, int64_t threads, void (*body)(int64_t, const void*), const void* context) {
    const std::unique_lock lock(opener_, std::adopt_lock);
    start_workers(threads - 1);
    region_.body = body;
    region_.context = context;
    region_.num_ranges = threads;
    for (int64_t t = 0; t < threads; ++t) ranges_[t].assign(t * count / threads, (t + 1) * count / threads);
    const uint64_t number = (gate_.load(std::memory_order_relaxed) >> 32) + 1;
    gate_.store(number << 32 | kOpen, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) > 0) {
      announced_.fetch_add(1, std::memory_order_relaxed);
      announced_.notify_all();
    }
    work(0);
    gate_.fetch_and(~kOpen, std::memory_order_acq_rel);
    for (int looks = 0; (gate_.load(std::memory_order_acquire) & kInside) != 0; ++looks) {
      looks < 1000 ? pause() : std::this_thread::yield();
    }
    if (region_.error) std::rethrow_exception(std::exchange(region_.error, nullptr));
  }

 private:
  static constexpr uint64_t kOpen = uint64_t{1} << 31, kInside = kOpen - 1;

  void start_workers(int64_t wanted) {
    for (; num_workers_ < wanted; ++num_workers_) {
      std::thread([this, index = num_workers_ + 1] { look_out(index); }).detach();
    }
  }

  // A worker's life.
  void look_out(int64_t index) {
    uint64_t last = 0;
    for (;;) {
      const uint64_t gate = await_region(last);
      last = gate >> 32;
      uint64_t seen = gate;
      while ((seen & kOpen) != 0 && seen >> 32 == last) {
        if (gate_.compare_exchange_weak(seen, seen + 1, std::memory_order_acq_rel)) {
          // Of a smaller region there is no range for the last workers, but what others leave is theirs to take.
          work(index);
          gate_.fetch_sub(1, std::memory_order_acq_rel);
          break;
        }
      }
    }
  }

  // The gate of an open region other than `last`.
  uint64_t await_region(uint64_t last) {
    const auto is_new = [&](uint64_t gate) { return (gate & kOpen) != 0 && gate >> 32 != last; };
    for (;;) {
      const auto sleep_at = std::chrono::steady_clock::now() + kLookout;
      do {
        for (int i = 0; i < 64; ++i) {
          const uint64_t gate = gate_.load(std::memory_order_acquire);
          if (is_new(gate)) return gate;
          pause();
        }
      } while (std::chrono::steady_clock::now() < sleep_at);
      const uint32_t announced = announced_.load(std::memory_order_relaxed);
      sleepers_.fetch_add(1, std::memory_order_seq_cst);
      if (!is_new(gate_.load(std::memory_order_seq_cst))) announced_.wait(announced, std::memory_order_relaxed);
      sleepers_.fetch_sub(1, std::memory_order_relaxed);
    }
  }

  void work(int64_t index) {
    const int64_t num_ranges = region_.num_ranges;
    const int64_t own = index < num_ranges ? index : 0;
    try {
      if (index < num_ranges) {
        for (int64_t i = ranges_[own].take_front(); i >= 0; i = ranges_[own].take_front()) {
          region_.body(i, region_.context);
        }
      }
      for (int64_t step = index < num_ranges ? 1 : 0; step < num_ranges; ++step) {
        ItemRange& other = ranges_[(own + step) % num_ranges];
        for (int64_t i = other.take_back(); i >= 0; i = other.take_back()) region_.body(i, region_.context);
      }
    } catch (...) {
      for (int64_t t = 0; t < num_ranges; ++t) ranges_[t].assign(0, 0);  // what is left is of no use to anybody
      const std::lock_guard lock(region_.error_mutex);
      if (!region_.error) region_.error = std::current_exception();
    }
  }

  std::mutex opener_;
  int64_t num_workers_ = 0;
  Region region_;
  const std::unique_ptr<ItemRange[]> ranges_{new ItemRange[kMaxThreads]};
  alignas(64) std::atomic<uint64_t> gate_{0};
  alignas(64) std::atomic<uint32_t> announced_{0};
  std::atomic<int32_t> sleepers_{0};
};

int64_t processors_of_this_process() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1u, std::thread::hardware_concurrency());
}

std::atomic<int64_t> chosen_threads{0};  // 0: not chosen

}  // namespace

int64_t num_threads() {
  const int64_t chosen = chosen_threads.load(std::memory_order_relaxed);
  if (chosen > 0) return chosen;
  static const int64_t processors = std::min(processors_of_this_process(), kMaxThreads);
  return processors;
}

void set_num_threads(int64_t count) {
  if (count < 1 || count > kMaxThreads) {
    throw std::invalid_argument("num_threads must be between 1 and " + std::to_string(kMaxThreads) + ", got " +
                                std::to_string(count));
  }
  chosen_threads.store(count, std::memory_order_relaxed);
}

void run_items(int64_t count, void (*body)(int64_t item, const void* context), const void* context) {
  const int64_t threads = std::min(count, num_threads());
  if (threads > 1 && ThreadTeam::instance().try_open()) {
    ThreadTeam::instance().run(count, threads, body, context);
    return;
  }
  for (int64_t item = 0; item < count; ++item) body(item, context);
}

}  // namespace cudaprefill::cpu
