// The online softmax of the 16 rows of a fragment: a running maximum and sum, in powers of two.
#pragma once

#include <cuda_runtime.h>

#include <ptx/convert.cuh>

#include "csrc/cuda/reduce.cuh"

namespace cudaprefill {

constexpr float kLog2E = 1.4426950408889634f;
constexpr float kMinusInfinity = -__builtin_huge_valf();

// How raw dot products become exponents of two: 2^(factor * score), after the soft cap, if any.
struct ScoreScale {
  float factor;
  float into_cap;  // scale / softcap, or 0 for no cap

  __host__ __device__ static ScoreScale from(float scale, float softcap) {
    return softcap > 0 ? ScoreScale{softcap * kLog2E, scale / softcap} : ScoreScale{scale * kLog2E, 0};
  }

  // For dot products with keys that stand for themselves times `key_scale`.
  __device__ __forceinline__ ScoreScale of_keys(float key_scale) const {
    return into_cap == 0 ? ScoreScale{factor * key_scale, 0} : ScoreScale{factor, into_cap * key_scale};
  }

  // softcap * tanh(x / softcap), without the leading factor: that is in `factor`.
  template <int tiles>
  __device__ __forceinline__ void cap(float (&scores)[tiles][4]) const {
    if (into_cap == 0) return;
#pragma unroll
    for (int n = 0; n < tiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        // tanh(x) = 1 - 2 / (e^2x + 1): exact at both ends, where e^2x is infinite or zero.
        const float e = ptx::exp2_fast(scores[n][i] * into_cap * (2 * kLog2E));
        scores[n][i] = 1 - __fdividef(2, e + 1);
      }
    }
  }
};

struct OnlineSoftmax {
  // Of rows g and g + 8. The sum is of this lane's columns only, until finish().
  float maximum[2] = {kMinusInfinity, kMinusInfinity};
  float sum[2] = {0, 0};

  // Scores become weights. What was accumulated before is to be scaled to the new maximum by `correction`.
  template <int tiles>
  __device__ __forceinline__ void weigh(float (&scores)[tiles][4], float factor, float (&correction)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float highest = maximum[half];
#pragma unroll
      for (int n = 0; n < tiles; ++n) highest = fmaxf(highest, fmaxf(scores[n][2 * half], scores[n][2 * half + 1]));
      highest = fmaxf(highest, __shfl_xor_sync(kFullWarp, highest, 1));
      highest = fmaxf(highest, __shfl_xor_sync(kFullWarp, highest, 2));
      // A row that has seen no key yet: any finite reference makes all of its weights 0.
      const float reference = highest == kMinusInfinity ? 0.0f : highest * factor;
      correction[half] = ptx::exp2_fast(maximum[half] * factor - reference);
      maximum[half] = highest;
      sum[half] *= correction[half];
#pragma unroll
      for (int n = 0; n < tiles; ++n) {
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
          scores[n][i] = ptx::exp2_fast(scores[n][i] * factor - reference);
          sum[half] += scores[n][i];
        }
      }
    }
  }

  template <int tiles>
  __device__ __forceinline__ static void rescale(float (&out)[tiles][4], const float (&correction)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int n = 0; n < tiles; ++n) {
        out[n][2 * half] *= correction[half];
        out[n][2 * half + 1] *= correction[half];
      }
    }
  }

  template <int tiles, int out_tiles>
  __device__ __forceinline__ void update(float (&scores)[tiles][4], float (&out)[out_tiles][4], float factor) {
    float correction[2];
    weigh(scores, factor, correction);
    rescale(out, correction);
  }

  // Completes the sums over the four lanes that share a row.
  __device__ __forceinline__ void finish() {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      sum[half] += __shfl_xor_sync(kFullWarp, sum[half], 1);
      sum[half] += __shfl_xor_sync(kFullWarp, sum[half], 2);
    }
  }
};

// The logarithm, to base two, of the sum of the weights of a row, against no reference; -inf where there was no key.
// Parts of a row are merged by it.
__device__ __forceinline__ float log2_of_sum(float maximum, float sum, float factor) {
  return sum == 0 ? kMinusInfinity : maximum * factor + log2f(sum);
}

}  // namespace cudaprefill
