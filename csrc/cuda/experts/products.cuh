// The two products of expert_mlp on tensor cores. A thread block makes 64 rows, pairs of one expert, and 64 rows of
// weights; a warp has 16 of the pairs and all of the weights:
//
//   gated:   the weights are 32 rows of gate and the same 32 of up, so a thread holds both of an output and stores
//            silu(gate) * up, [num_pairs, inner_size].
//   down:    64 rows of down; what it makes goes to the place of the pair, unweighted.
//
// Both operands come 64 elements at a time by cp.async into two stages in turn.
#pragma once

#include <cuda_runtime.h>

#include <ptx/async_copy.cuh>
#include <ptx/convert.cuh>
#include <ptx/matrix.cuh>
#include <ptx/memory.cuh>

#include "csrc/cuda/activation.cuh"
#include "csrc/cuda/attention/products.cuh"
#include "csrc/cuda/experts/experts.h"
#include "csrc/cuda/reduce.cuh"
#include "csrc/cuda/stream_order.cuh"

namespace cudaprefill {

constexpr int kProductThreads = kExpertRows / 16 * kWarpSize;
constexpr int kProductDepth = 64;
constexpr int kWeightRows = 64;
using ExpertOperand = SharedTile<kProductDepth>;
constexpr uint32_t kProductStageBytes = ExpertOperand::bytes(kExpertRows) + ExpertOperand::bytes(kWeightRows);
constexpr uint32_t kProductSharedBytes = 2 * kProductStageBytes;

template <bool gated>
constexpr int kOutputsOfBlock = gated ? kWeightRows / 2 : kWeightRows;

template <class Element, bool gated>
__global__ void __launch_bounds__(kProductThreads) expert_product_kernel(const __grid_constant__ ExpertLaunch launch) {
  constexpr int kCopyRows = kProductThreads / ExpertOperand::kChunks;  // that all threads copy at once
  constexpr int kCopies = kExpertRows / kCopyRows;
  static_assert(kExpertRows == kWeightRows);
  const ExpertMlpParams& params = launch.op;
  enter_stream();
  const int4 tile = ptx::load_global(reinterpret_cast<const int4*>(launch.tiles + blockIdx.x));
  const int expert = tile.x, first = tile.y, count = tile.z;
  if (count == 0) return;
  const int depth = gated ? params.hidden_size : params.inner_size;
  const int num_outputs = gated ? params.inner_size : params.hidden_size;
  const int first_output = static_cast<int>(blockIdx.y) * kOutputsOfBlock<gated>;
  const int lane = threadIdx.x % kWarpSize, warp = threadIdx.x / kWarpSize;

  // The rows that this thread copies from, always the same chunk of each step.
  const int chunk = threadIdx.x % ExpertOperand::kChunks;
  const Element* inputs[kCopies];
  const Element* weights[kCopies];
  const ExpertMatrices& matrices = gated ? params.gate_up : params.down;
#pragma unroll
  for (int i = 0; i < kCopies; ++i) {
    const int row = i * kCopyRows + threadIdx.x / ExpertOperand::kChunks;
    inputs[i] = nullptr;
    if (row < count) {
      if constexpr (gated) {
        const int token = ptx::load_global(launch.sorted + first + row) / params.num_chosen;
        inputs[i] = static_cast<const Element*>(params.x) + token * params.x_stride;
      } else {
        inputs[i] = static_cast<const Element*>(launch.inner) + int64_t{first + row} * params.inner_size;
      }
    }
    const int output = first_output + row % kOutputsOfBlock<gated>;
    const int64_t of_expert = gated && row >= kOutputsOfBlock<gated> ? params.inner_size + output : output;
    const int64_t weight_row = int64_t{expert} * (gated ? 2 * num_outputs : num_outputs) + of_expert;
    weights[i] =
        output < num_outputs ? static_cast<const Element*>(matrices.data) + weight_row * matrices.stride : nullptr;
  }
  const uint32_t shared = ptx::shared_base();
  const auto stage_of = [&](int step) { return shared + step % 2 * kProductStageBytes; };
  const auto copy = [&](int step) {
    const ExpertOperand a{stage_of(step)}, b{a.base + ExpertOperand::bytes(kExpertRows)};
    const int element = step * kProductDepth + chunk * kChunkElements;
    const bool inside = element < depth;
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const int row = i * kCopyRows + threadIdx.x / ExpertOperand::kChunks;
      ptx::copy_async_16(a.address(row, chunk), inputs[i] + element, inside && inputs[i] != nullptr);
      ptx::copy_async_16(b.address(row, chunk), weights[i] + element, inside && weights[i] != nullptr);
    }
  };

  float sums[kWeightRows / 8][4] = {};
  const int steps = (depth + kProductDepth - 1) / kProductDepth;
  copy(0);
  ptx::commit_copies();
  for (int step = 0; step < steps; ++step) {
    if (step + 1 < steps) copy(step + 1);
    ptx::commit_copies();
    ptx::wait_for_copies<1>();  // this step's, of this thread
    __syncthreads();            // and of all others
    const ExpertOperand a{stage_of(step)}, b{a.base + ExpertOperand::bytes(kExpertRows)};
    if (warp * 16 < count) {
#pragma unroll
      for (int k = 0; k < kProductDepth / 16; ++k) {
        uint32_t rows[4];
        load_query(a, warp * 16, k, lane, rows);
#pragma unroll
        for (int n = 0; n < kWeightRows / 16; ++n) {
          uint32_t columns[4];
          load_keys(b, n * 16, k, lane, columns);
          ptx::multiply_accumulate<Element>(sums[2 * n], rows, columns[0], columns[1]);
          ptx::multiply_accumulate<Element>(sums[2 * n + 1], rows, columns[2], columns[3]);
        }
      }
    }
    __syncthreads();  // the stage may be filled again
  }

  const int group = lane / 4, quarter = lane % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = warp * 16 + group + 8 * half;
    if (row >= count) continue;
    Element* out;
    if constexpr (gated) {
      out = static_cast<Element*>(launch.inner) + int64_t{first + row} * num_outputs;
    } else {
      out =
          static_cast<Element*>(launch.outputs) + int64_t{ptx::load_global(launch.sorted + first + row)} * num_outputs;
    }
#pragma unroll
    for (int n = 0; n < kOutputsOfBlock<gated> / 8; ++n) {
      const int output = first_output + n * 8 + 2 * quarter;
      if (output >= num_outputs) continue;
      float low = sums[n][2 * half], high = sums[n][2 * half + 1];
      if constexpr (gated) {
        constexpr int kUp = kOutputsOfBlock<gated> / 8;
        low = cuda::activate<Activation::kSilu>(low) * sums[n + kUp][2 * half];
        high = cuda::activate<Activation::kSilu>(high) * sums[n + kUp][2 * half + 1];
      }
      ptx::store_global(reinterpret_cast<uint32_t*>(out + output), ptx::pack<Element>(low, high));
    }
  }
}

}  // namespace cudaprefill
