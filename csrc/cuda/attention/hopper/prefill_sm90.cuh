// prefill_attention for compute capability 9.0: wgmma, fed by tensor copies or by cp.async.
//
// One thread block a multiprocessor takes the items of the plan (prefill_plan.h) in turn. Its warpgroups have parts:
//
//     warpgroup 0, the producer    | K0 V0 K1 V1 ...        into a ring of stages (pipeline.cuh)
//     warpgroups 1 and up          | S = Q K^T, softmax, O += P V, each for its own 64 rows
//
// Registers go where they are needed (setmaxnreg). The producer's first warp copies, a page of a tile by each lane; its
// second warp zeroes the rows of V that are no part of the context, for what lies there may be NaN, and 0 * NaN is NaN;
// the other two bring queries, and tell the consumers what they are.
// Pages that lie wholly outside are not read at all: their coordinates are outside of the tensor, and zeros come.
#pragma once

#include <cuda_runtime.h>

#include <ptx/memory.cuh>
#include <ptx/tensor_copy.cuh>
#include <ptx/warpgroup.cuh>
#include <type_traits>

#include "csrc/cuda/attention/hopper/consume.cuh"
#include "csrc/cuda/attention/hopper/pipeline.cuh"
#include "csrc/cuda/attention/hopper/prefill_launch.h"
#include "csrc/cuda/attention/hopper/produce.cuh"
#include "csrc/cuda/reduce.cuh"
#include "csrc/cuda/stream_order.cuh"

namespace cudaprefill {

constexpr int kQueryWarps = 2;  // of the producer, beside tensor copies

template <class Element, int head_size, KvCopies copies>
__global__ void __launch_bounds__(HopperPrefillTraits<head_size>::kThreads, 1)
    prefill_sm90_kernel(const __grid_constant__ HopperPrefillLaunch launch) {
  using Traits = HopperPrefillTraits<head_size>;
  const PrefillMemory<head_size> memory(ptx::shared_base());
  // From one lane, so that the compiler knows that the warp agrees.
  const int warp_of_block = __shfl_sync(kFullWarp, static_cast<int>(threadIdx.x / kWarpSize), 0);
  const int lane = threadIdx.x % kWarpSize, warp = warp_of_block % kWarpsOfGroup;
  const int warpgroup = warp_of_block / kWarpsOfGroup;
  if (warp_of_block == 0 && ptx::elect_one()) {
    constexpr bool kTensor = copies == KvCopies::kTensor;
    if (kTensor) {
      ptx::prefetch_tensor_map(launch.keys);
      ptx::prefetch_tensor_map(launch.values);
    }
    memory.barriers().init(kTensor ? 1 : kWarpsOfGroup, kTensor ? kQueryWarps : kWarpsOfGroup,
                           Traits::kConsumers * kWarpsOfGroup);
  }
  __syncthreads();
  enter_stream();
  if (warpgroup == 0) {
    ptx::decrease_registers_to<Traits::kProducerRegisters>();
    if constexpr (copies == KvCopies::kTensor) {
      if (warp == 0) produce_by_tensor_copies(launch, memory, lane);
      if (warp == 1) zero_rows_outside(launch, memory, lane);
      constexpr int kFirst = kWarpsOfGroup - kQueryWarps;
      if (warp >= kFirst) produce_queries<Element>(launch.common, memory, warp - kFirst, kQueryWarps, lane);
    } else if constexpr (copies == KvCopies::kAsync) {
      produce_by_async_copies<Element>(launch, memory, warp, lane);
    } else {
      produce_by_widening_copies<Element>(launch, memory, warp, lane);
    }
  } else {
    ptx::increase_registers_to<Traits::kConsumerRegisters>();
    using Kv = std::conditional_t<copies == KvCopies::kWidening, Float8, Element>;
    consume<Element, Kv>(launch, memory, (warpgroup - 1) * kWarpgroupRows + warp * 16, lane);
  }
}

}  // namespace cudaprefill
