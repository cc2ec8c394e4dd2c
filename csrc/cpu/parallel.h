// parallel_for on torch's thread pool, which carries exceptions of the body to the caller.
#pragma once

#include <torch/csrc/stable/ops.h>

#include <cstdint>
#include <exception>
#include <mutex>

namespace cudaprefill::cpu {

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

}  // namespace cudaprefill::cpu
