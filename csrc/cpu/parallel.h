// Work on several threads, those of thread_team.h.
#pragma once

#include <algorithm>
#include <cstdint>

#include "csrc/cpu/float_types.h"

namespace cudaprefill::cpu {

// How many items of `elements` each make a piece worth a thread of its own, where the work is about reading and writing
// them: handing a piece to a second thread costs as much as moving some 16,000 elements.
CUDAPREFILL_INLINE int64_t grain_of(int64_t elements) {
  return std::max<int64_t>(1, 16384 / std::max<int64_t>(1, elements));
}

// The threads that parallel_for and parallel_items use at most.
int64_t num_threads();

// The bodies of the templates below as plain functions: `body` is called with `context`.
void run_parallel_for(int64_t count, int64_t grain, void (*body)(int64_t begin, int64_t end, const void* context),
                      const void* context);
void run_parallel_items(int64_t count, void (*body)(int64_t item, const void* context), const void* context);

// Calls body(begin, end) on pieces of [0, count) of about `grain` or more, on several threads; a count of at most
// `grain` runs in the calling thread without waking any. The first exception of a body is rethrown here, after all
// pieces have ended.
template <class Body>
CUDAPREFILL_INLINE void parallel_for(int64_t count, int64_t grain, const Body& body) {
  if (count <= 0) return;
  if (count <= grain) {
    body(0, count);
    return;
  }
  run_parallel_for(
      count, grain,
      [](int64_t begin, int64_t end, const void* context) { (*static_cast<const Body*>(context))(begin, end); }, &body);
}

// Calls body(i) for each of `count` items, in order and side by side: each thread walks through a range of its own, for
// memory is read fastest in long runs, and when it is done takes over what others have left at the ends of theirs, so
// that a core which is busy with something else holds up nobody for long. Exceptions as above.
template <class Body>
CUDAPREFILL_INLINE void parallel_items(int64_t count, const Body& body) {
  if (count == 1) {
    body(0);
    return;
  }
  run_parallel_items(
      count, [](int64_t item, const void* context) { (*static_cast<const Body*>(context))(item); }, &body);
}

}  // namespace cudaprefill::cpu
