#include <algorithm>

#include "csrc/cpu/block_groups.h"
#include "csrc/cpu/linear_kernels.h"
#include "csrc/cpu/parallel.h"

namespace cudaprefill::cpu::CUDAPREFILL_ISA {
namespace {

// Vectors of outputs at a time. Each has one sum for a row, for the order of adding has to be that of many rows;
// several hide its latency.
constexpr int kColumns = 4;

// Bytes of weights that a thread takes at a time.
constexpr int64_t kItemBytes = 32 * 1024;

// The outputs of kColumns columns from `first_column` on, of all kRows rows. Weights become floats in registers: what
// is read of the memory is what the file holds.
template <class Format, int kRows>
void run_columns(const LinearParams& params, int64_t first_column, int64_t num_columns) {
  const int64_t num_parts = params.num_inputs / kPartElements;
  Column columns[kColumns];
  Vec sums[kRows][kColumns];
  const auto count_of = [&](int c) {
    const int64_t left = params.num_outputs - (first_column + c) * Vec::kWidth;
    return static_cast<int>(std::clamp<int64_t>(left, 0, Vec::kWidth));
  };
#pragma GCC unroll 4
  for (int c = 0; c < kColumns; ++c) {
    columns[c] = column_at<Format>(static_cast<const uint8_t*>(params.weight), params.weight_stride,
                                   std::min(first_column + c, num_columns - 1), num_parts);
    const float* bias = params.bias == nullptr ? nullptr : params.bias + (first_column + c) * Vec::kWidth;
    const Vec before = bias == nullptr || count_of(c) == 0 ? zero()
                       : count_of(c) == Vec::kWidth        ? load(bias)
                                                           : load_first(bias, count_of(c));
#pragma GCC unroll 4
    for (int m = 0; m < kRows; ++m) sums[m][c] = before;
  }
  for (int64_t part = 0; part < num_parts; ++part) {
    const float* x = params.x + part * kPartElements;
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; ++c) {
      for_each_element<Format>(columns[c], part, [&](int i, Vec weights) {
#pragma GCC unroll 4
        for (int m = 0; m < kRows; ++m) sums[m][c] = fma(broadcast(x[m * params.x_stride + i]), weights, sums[m][c]);
      });
    }
  }
#pragma GCC unroll 4
  for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; ++c) {
      float* out = params.out + m * params.out_stride + (first_column + c) * Vec::kWidth;
      if (count_of(c) == Vec::kWidth) {
        store(out, sums[m][c]);
      } else if (count_of(c) > 0) {
        store_first(out, sums[m][c], count_of(c));
      }
    }
  }
}

template <class Format, int kRows = kFewRowsOfBlocks>
void run_rows(const LinearParams& params) {
  if constexpr (kRows > 1) {
    if (params.num_rows < kRows) return run_rows<Format, kRows - 1>(params);
  }
  const int64_t num_columns = (params.num_outputs + Vec::kWidth - 1) / Vec::kWidth;
  const int64_t column_bytes = group_bytes(params.block_format, params.num_inputs) / kColumnsOfGroup;
  const int64_t columns_of_item =
      std::max<int64_t>(1, kItemBytes / std::max<int64_t>(1, column_bytes) / kColumns) * kColumns;
  parallel_items((num_columns + columns_of_item - 1) / columns_of_item, [&](int64_t item) {
    const int64_t last = std::min(num_columns, (item + 1) * columns_of_item);
    for (int64_t column = item * columns_of_item; column < last; column += kColumns) {
      run_columns<Format, kRows>(params, column, num_columns);
    }
  });
}

}  // namespace

void linear_few_rows_of_blocks(const LinearParams& params) {
  if (params.num_rows == 0) return;
  with_block_format(params.block_format, [&](auto format) { run_rows<decltype(format)>(params); });
}

}  // namespace cudaprefill::cpu::CUDAPREFILL_ISA
