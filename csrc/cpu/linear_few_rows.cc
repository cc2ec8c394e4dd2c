#include <algorithm>

#include "csrc/cpu/linear_kernels.h"
#include "csrc/cpu/parallel.h"
#include "csrc/cpu/simd.h"

namespace cudaprefill::cpu::CUDAPREFILL_ISA {
namespace {

// Bytes of weights that a thread takes at a time.
constexpr int64_t kItemBytes = 64 * 1024;

// Several rows of x: a tile of kOutputs weight rows and up to kRowGroup rows of x has its sums in registers, and the
// weight rows stay in the nearest cache while further row groups pass by.
constexpr int kOutputs = 4;
constexpr int kRowGroup = CUDAPREFILL_ISA_AVX512 ? 6 : 2;

// One row of x: weight rows are read one after the other, in the order in which they lie in memory, with this many sums
// each to hide the latency of adding.
constexpr int kSums = 4;

// How far ahead of itself that reading asks for memory. The matmuls of one decoded token, 538 MB of float32 or 269 MB
// of bfloat16 that plain reading gets through in 7.8 and 4.0 ms, took 7.8 and 4.8 ms without it, 7.4 and 4.1 ms at 8
// KiB, about the same at 4 KiB and more at 2 and at 16.
constexpr int64_t kBytesAhead = 8192;

CUDAPREFILL_INLINE float bias_of(const LinearParams& params, int64_t output) {
  return params.bias == nullptr ? 0.0f : params.bias[output];
}

template <class Weight>
void run_single_row(const LinearParams& params, int64_t first, int64_t last) {
  const float* x = params.x;
  for (int64_t output = first; output < last; ++output) {
    const Weight* weight = static_cast<const Weight*>(params.weight) + output * params.weight_stride;
    Vec sums[kSums] = {zero(), zero(), zero(), zero()};
    int64_t k = 0;
    for (; k + kSums * Vec::kWidth <= params.num_inputs; k += kSums * Vec::kWidth) {
#pragma GCC unroll 4
      for (int i = 0; i < kSums; ++i) {
        const Weight* at = weight + k + i * Vec::kWidth;
        prefetch(reinterpret_cast<const char*>(at) + kBytesAhead);
        sums[i] = fma(load(at), load(x + k + i * Vec::kWidth), sums[i]);
      }
    }
    for_each_vector(
        params.num_inputs - k, [&](int64_t i) { sums[0] = fma(load(weight + k + i), load(x + k + i), sums[0]); },
        [&](int64_t i, int count) {
          sums[0] = fma(load_first(weight + k + i, count), load_first(x + k + i, count), sums[0]);
        });
    params.out[output] = sum((sums[0] + sums[1]) + (sums[2] + sums[3])) + bias_of(params, output);
  }
}

// The outputs first .. first + count - 1 (count <= kOutputs) of kRows rows of x from `row` on.
template <class Weight, int kRows>
void run_tile(const LinearParams& params, int64_t row, int64_t first, int64_t count) {
  const Weight* weights[kOutputs];
#pragma GCC unroll 4
  for (int o = 0; o < kOutputs; ++o) {
    const int64_t output = first + std::min<int64_t>(o, count - 1);
    weights[o] = static_cast<const Weight*>(params.weight) + output * params.weight_stride;
  }
  const float* x = params.x + row * params.x_stride;

  Vec partial[kRows][kOutputs];
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 4
    for (int o = 0; o < kOutputs; ++o) partial[m][o] = zero();
  }
  const auto add = [&](const auto& load_weight, const auto& load_x) {
    Vec weight[kOutputs];
#pragma GCC unroll 4
    for (int o = 0; o < kOutputs; ++o) weight[o] = load_weight(weights[o]);
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
      const Vec v = load_x(x + m * params.x_stride);
#pragma GCC unroll 4
      for (int o = 0; o < kOutputs; ++o) partial[m][o] = fma(v, weight[o], partial[m][o]);
    }
  };
  for_each_vector(
      params.num_inputs,
      [&](int64_t k) {
        add(
            [&](const Weight* weight) {
              prefetch(weight + kOutputs * params.weight_stride + k);  // the next tile's
              return load(weight + k);
            },
            [&](const float* from) { return load(from + k); });
      },
      [&](int64_t k, int left) {
        add([&](const Weight* weight) { return load_first(weight + k, left); },
            [&](const float* from) { return load_first(from + k, left); });
      });

#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) {
    float sums[kOutputs];
    store_sums(sums, partial[m][0], partial[m][1], partial[m][2], partial[m][3]);
    float* out = params.out + (row + m) * params.out_stride + first;
    for (int64_t o = 0; o < count; ++o) out[o] = sums[o] + bias_of(params, first + o);
  }
}

template <class Weight, int kRows = kRowGroup>
void run_row_group(const LinearParams& params, int64_t row, int64_t rows, int64_t first, int64_t count) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return run_row_group<Weight, kRows - 1>(params, row, rows, first, count);
  }
  run_tile<Weight, kRows>(params, row, first, count);
}

template <class Weight>
void run_row_groups(const LinearParams& params, int64_t output, int64_t count) {
  const int64_t groups = (params.num_rows + kRowGroup - 1) / kRowGroup;
  for (int64_t group = 0; group < groups; ++group) {
    // Groups as even as they can be: a group of one row has too few sums to hide the latency of adding.
    const int64_t row = group * params.num_rows / groups;
    run_row_group<Weight>(params, row, (group + 1) * params.num_rows / groups - row, output, count);
  }
}

template <class Weight>
void run_tiles(const LinearParams& params, int64_t first, int64_t last) {
  for (int64_t output = first; output < last; output += kOutputs) {
    run_row_groups<Weight>(params, output, std::min<int64_t>(kOutputs, last - output));
  }
}

// Calls run(first, last) for the outputs of each item; a row of the weights has `row_bytes`.
template <class Run>
void run_items(const LinearParams& params, int64_t row_bytes, const Run& run) {
  const int64_t outputs_per_item =
      std::max<int64_t>(1, kItemBytes / std::max<int64_t>(1, row_bytes) / kOutputs) * kOutputs;
  parallel_items((params.num_outputs + outputs_per_item - 1) / outputs_per_item, [&](int64_t item) {
    run(item * outputs_per_item, std::min(params.num_outputs, (item + 1) * outputs_per_item));
  });
}

}  // namespace

void linear_few_rows(const LinearParams& params) {
  with_element_type(params.weight_dtype, [&](auto w) {
    using Weight = decltype(w);
    run_items(params, params.num_inputs * static_cast<int64_t>(sizeof(Weight)), [&](int64_t first, int64_t last) {
      params.num_rows == 1 ? run_single_row<Weight>(params, first, last) : run_tiles<Weight>(params, first, last);
    });
  });
}

}  // namespace cudaprefill::cpu::CUDAPREFILL_ISA
