// How a kernel takes its place in the stream.
//
// Launches are programmatic where the device can (launch.cuh): a kernel may begin while the one before it still runs,
// so its launch and its first lines cost no time of their own.
//
//     kernel n      | enter_stream   works ............ |
//     kernel n + 1          | begins      enter_stream  ^ works ......
//
// The rule, for every kernel and for every thread of it that goes on to touch global memory: enter_stream() comes
// first, on every path, also on one that has nothing to do.
//
// - Before it: the launch's own parameters, indices, shared memory, mbarriers, prefetches of tensor maps.
// - Never: a load of global memory, be it of a weight (whoever called the op may have made it a kernel ago), a copy, a
//   store (the kernel before, and those before that, may still read there).
//
// It waits for the kernel before to be complete, and for no other. But that one has been complete only after its own
// wait, so by induction all that came earlier is; a single kernel that ends without the wait would break this for those
// after it. When the next kernel is let begin decides nothing but how early it is there: it waits, too.
// tests/cuda/test_sources.py reads the sources for this, and machine_code.py what the compiler makes of them.
#pragma once

#include <ptx/programmatic_launch.cuh>

namespace cudaprefill {

__device__ __forceinline__ void enter_stream() {
  ptx::wait_for_kernel_before();
  ptx::let_next_kernel_begin();
}

}  // namespace cudaprefill
