// Attention in float32, for models that are kept in it: one warp a (token, query head), no tensor cores. Lanes take a
// key each for the scores, and elements of the head for the output.
#include <cuda_runtime.h>

#include <launch.cuh>
#include <ptx/memory.cuh>

#include "csrc/cuda/attention/pages.cuh"
#include "csrc/cuda/attention/plain.h"
#include "csrc/cuda/attention/softmax.cuh"
#include "csrc/cuda/kv_number.cuh"
#include "csrc/cuda/reduce.cuh"
#include "csrc/cuda/stream_order.cuh"
#include "csrc/cuda/vector.cuh"

namespace cudaprefill {
namespace {

constexpr int kThreads = 128;
constexpr int kMaxElementsPerLane = kPlainMaxHeadSize / kWarpSize;

// The request that a row of q belongs to: the last one that begins at or before it.
__device__ int request_of(const PrefillAttentionParams& params, int token) {
  int low = 0, high = params.num_requests;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (ptx::load_global(params.cu_seqlens_q + middle) <= token) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

__device__ float warp_maximum(float value) {
  for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
    value = fmaxf(value, __shfl_xor_sync(kFullWarp, value, distance));
  }
  return value;
}

__device__ __forceinline__ void load_four(const float* from, float (&out)[4]) { load_vector(from, out); }
__device__ __forceinline__ void load_four(const Float8* from, float (&out)[4]) {
  const uint32_t numbers = ptx::load_global(reinterpret_cast<const uint32_t*>(from));
  ptx::unpack<Half>(widen_first_two<Half>(numbers), out[0], out[1]);
  ptx::unpack<Half>(widen_last_two<Half>(numbers), out[2], out[3]);
}

__device__ __forceinline__ float load_one(const float* from) { return ptx::load_global(from); }
__device__ __forceinline__ float load_one(const Float8* from) {
  float number, other;
  ptx::unpack<Half>(widen_first_two<Half>(ptx::load_global(from).bits), number, other);
  return number;
}

// Position and number of keys are those of the row; `launch.op.cu_seqlens_q` is null for a decode.
template <class Kv>
__global__ void __launch_bounds__(kThreads) plain_attention_kernel(const __grid_constant__ PlainLaunch launch) {
  const PrefillAttentionParams& params = launch.op;
  const int lane = threadIdx.x % kWarpSize;
  const int64_t work = int64_t{blockIdx.x} * (kThreads / kWarpSize) + threadIdx.x / kWarpSize;
  enter_stream();
  if (work >= params.num_tokens * params.num_q_heads) return;
  const auto token = static_cast<int>(work / params.num_q_heads);
  const int head = static_cast<int>(work - int64_t{token} * params.num_q_heads);

  int request = token, position;
  if (params.cu_seqlens_q) {
    request = request_of(params, token);
    const int first = ptx::load_global(params.cu_seqlens_q + request);
    const int last = ptx::load_global(params.cu_seqlens_q + request + 1);
    if (token < first || token >= last) return;
    position = ptx::load_global(params.context_lens + request) - last + token;
  } else {
    position = ptx::load_global(params.context_lens + request) - 1;
  }
  const int first_key = params.window > 0 ? max(0, position - params.window + 1) : 0;

  const int32_t* table = params.block_table + request * params.block_table_stride;
  const int kv_head = head / launch.group;
  ScoreScale score_scale = launch.scale;
  if constexpr (kHasScales<Kv>) score_scale = launch.scale.of_keys(scale_of<Kv>(params.k_cache, kv_head));
  const PagedRows<Kv> keys(params.k_cache, kv_head, table, launch.block_shift);
  const PagedRows<Kv> values(params.v_cache, kv_head, table, launch.block_shift);
  const float* q =
      static_cast<const float*>(params.q.data) + token * params.q.token_stride + head * params.q.head_stride;

  float out[kMaxElementsPerLane] = {};
  float maximum = kMinusInfinity, sum = 0;
  for (int first = first_key; first <= position; first += kWarpSize) {
    const int key = first + lane;
    float score[1][4] = {{kMinusInfinity, kMinusInfinity, kMinusInfinity, kMinusInfinity}};
    const Kv* value_row = nullptr;
    if (key <= position) {
      const Kv* key_row = keys.row(key);
      value_row = values.row(key);
      float dot = 0;
      for (int i = 0; i < params.head_size; i += 4) {
        float a[4], b[4];
        load_vector(q + i, a);
        load_four(key_row + i, b);
        dot += a[0] * b[0] + a[1] * b[1] + a[2] * b[2] + a[3] * b[3];
      }
      score[0][0] = dot;
      score_scale.cap(score);
    }
    const float highest = fmaxf(maximum, warp_maximum(score[0][0]));
    const float correction = ptx::exp2_fast((maximum - highest) * score_scale.factor);
    const float weight = ptx::exp2_fast((score[0][0] - highest) * score_scale.factor);
    maximum = highest;
    sum = sum * correction + group_sum(weight, kWarpSize);
#pragma unroll
    for (int i = 0; i < kMaxElementsPerLane; ++i) out[i] *= correction;
    for (int j = 0; j < min(kWarpSize, position + 1 - first); ++j) {
      const float weight_of_key = __shfl_sync(kFullWarp, weight, j);
      const auto row = __shfl_sync(kFullWarp, reinterpret_cast<unsigned long long>(value_row), j);
#pragma unroll
      for (int i = 0; i < kMaxElementsPerLane; ++i) {
        const int element = i * kWarpSize + lane;
        if (element < params.head_size) {
          out[i] += weight_of_key * load_one(reinterpret_cast<const Kv*>(row) + element);
        }
      }
    }
  }
  float* to = static_cast<float*>(params.out.data) + token * params.out.token_stride + head * params.out.head_stride;
  const float scale = sum > 0 ? scale_of<Kv>(params.v_cache, kv_head) / sum : 0.0f;
#pragma unroll
  for (int i = 0; i < kMaxElementsPerLane; ++i) {
    const int element = i * kWarpSize + lane;
    if (element < params.head_size) ptx::store_global(to + element, out[i] * scale);
  }
}

}  // namespace

void run_plain_attention(const PlainLaunch& launch_params, cudaStream_t stream) {
  constexpr int kWarps = kThreads / kWarpSize;
  const int64_t work = launch_params.op.num_tokens * launch_params.op.num_q_heads;
  const LaunchShape shape{dim3{static_cast<unsigned>((work + kWarps - 1) / kWarps), 1, 1}, kThreads};
  with_kv_type<float>(launch_params.op.kv_dtype, [&]<class Kv>(Kv) {
    launch("plain_attention", plain_attention_kernel<Kv>, shape, launch_params, stream);
  });
}

}  // namespace cudaprefill
