// griddepcontrol: how a kernel and the next one of its stream overlap (sm_90; below, kernels follow one another wholly
// and these do nothing). csrc/cuda/stream_order.cuh has the rule that kernels keep.
#pragma once

#include <cuda_runtime.h>

namespace cudaprefill::ptx {

// Waits until the kernel before is complete and all that it has written is there to see for this whole grid.
__device__ __forceinline__ void wait_for_kernel_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// The next kernel may begin when one thread of every block has come here, or the block has ended.
__device__ __forceinline__ void let_next_kernel_begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace cudaprefill::ptx
