// parallel_for on torch's thread pool, which carries exceptions of the body to the caller.
#pragma once

#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>

#include "csrc/cpu/float_types.h"

namespace cudaprefill::cpu {

// How many items of `elements` each make a piece worth a thread of its own, where the work is about reading and writing
// them: handing a piece to a second thread costs as much as moving some 16,000 elements.
CUDAPREFILL_INLINE int64_t grain_of(int64_t elements) {
  return std::max<int64_t>(1, 16384 / std::max<int64_t>(1, elements));
}

// Calls body(begin, end) on pieces of [0, count) of about `grain` or more, on several threads; a count of at most
// `grain` runs in the calling thread without waking any. The first exception of a body is rethrown here, after all
// pieces have ended.
template <class Body>
void parallel_for(int64_t count, int64_t grain, const Body& body) {
  if (count <= 0) return;
  if (count <= grain) {
    body(0, count);
    return;
  }
  // An exception that crosses torch's C interface would be printed and lose its message.
  std::exception_ptr error;
  std::mutex error_mutex;
  torch::stable::parallel_for(0, count, grain, [&](int64_t begin, int64_t end) {
    try {
      body(begin, end);
    } catch (...) {
      const std::lock_guard lock(error_mutex);
      if (!error) error = std::current_exception();
    }
  });
  if (error) std::rethrow_exception(error);
}

// Calls body(i) for each of `count` items, each of which is worth a thread of its own. A thread takes the next item
// when it is done with one, so that a core that is busy with something else slows the others down little.
template <class Body>
void parallel_items(int64_t count, const Body& body) {
  const int64_t threads = std::min<int64_t>(count, torch::stable::get_num_threads());
  std::atomic<int64_t> next{0};
  parallel_for(threads, 1, [&](int64_t, int64_t) {
    for (int64_t i = next++; i < count; i = next++) body(i);
  });
}

}  // namespace cudaprefill::cpu
