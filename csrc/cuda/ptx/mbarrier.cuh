// mbarrier: a barrier in shared memory that counts arrivals and, beside them, bytes (sm_90).
//
// A phase ends when all expected threads have arrived and all announced bytes have come. Phases are told apart by one
// bit, the parity: the first phase has parity 0, the next 1, then 0 again. Waiting for the parity of the phase *before*
// the current one returns at once, so on a fresh mbarrier wait(1) passes: "as if a phase had ended before the first".
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace cudaprefill::ptx {

constexpr uint32_t kMbarrierBytes = 8;

// One thread, before any other touches it. `arrivals` end a phase.
__device__ __forceinline__ void mbarrier_init(uint32_t mbarrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(mbarrier), "r"(arrivals) : "memory");
}

// After the last mbarrier_init of a thread, and before the barrier after which others use them: only then does the
// hardware that copies see them as well.
__device__ __forceinline__ void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void mbarrier_arrive(uint32_t mbarrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(mbarrier) : "memory");
}

// Arrives, and announces bytes that copies will bring in this phase.
__device__ __forceinline__ void mbarrier_arrive_expecting(uint32_t mbarrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(mbarrier), "r"(bytes) : "memory");
}

// Waits until the phase of that parity has ended. What was done before the arrivals, and the bytes that came, are seen
// after it.
__device__ __forceinline__ void mbarrier_wait(uint32_t mbarrier, uint32_t parity) {
  uint32_t done;
  do {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n"
        "}"
        : "=r"(done)
        : "r"(mbarrier), "r"(parity)
        : "memory");
  } while (!done);
}

// Makes what this thread has written to shared memory by ordinary stores (or cp.async that it has waited for) visible
// to the asynchronous proxy: to wgmma and to tensor copies. Before the barrier that tells others.
__device__ __forceinline__ void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

}  // namespace cudaprefill::ptx
