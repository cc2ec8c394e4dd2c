// The threads that the CPU kernels share their work with.
//
// A decode step opens some two hundred parallel regions of a few microseconds. A barrier at the end of each, as OpenMP
// has it, waits for every worker to come by, even one that a busy system has not let run yet. Here nobody waits for a
// worker that has not come: whoever has opened a region takes all items that are left, and at the end waits only for
// items that others are in the middle of. The slowest of 40 decode steps on two cores, beside two and five programs
// that never sleep: 270 and 508 ms with OpenMP, 23 and 83 ms with this.
#pragma once

#include <cstdint>

namespace cudaprefill::cpu {

// Threads that share an item loop, the calling one among them: set_num_threads(), or as many as the process may run on.
int64_t num_threads();

// Raises std::invalid_argument unless 1 <= count <= kMaxThreads.
void set_num_threads(int64_t count);

constexpr int64_t kMaxThreads = 1024;

// Calls body(item, context) for the items 0 .. count - 1, in order and side by side: each thread walks through a range
// of its own, for memory is read fastest in long runs, and when it is done takes over what others have left at the ends
// of theirs. Returns when all have ended; rethrows the first exception of a body. A caller that finds the team at work
// for another thread does all by itself.
void run_items(int64_t count, void (*body)(int64_t item, const void* context), const void* context);

}  // namespace cudaprefill::cpu
