#include <stdexcept>
#include <string>

#include "csrc/cpu/block_groups.h"
#include "csrc/cpu/kernel_declarations.h"
#include "csrc/cpu/parallel.h"

namespace cudaprefill::cpu::CUDAPREFILL_ISA {
namespace {

// One lane of each vector of a group: the others are decoded for nothing, which is fine for an embedding's few rows.
template <class Format>
void dequantise_row(const DequantiseRowsParams& params, int64_t row, float* out) {
  const int64_t num_parts = params.num_columns / kPartElements;
  const Column column = column_at<Format>(params.groups, params.group_stride, row / Vec::kWidth, num_parts);
  const int64_t lane = row % Vec::kWidth;
  for (int64_t part = 0; part < num_parts; ++part) {
    for_each_element<Format>(column, part, [&](int i, Vec weights) {
      float values[Vec::kWidth];
      store(values, weights);
      out[part * kPartElements + i] = values[lane];
    });
  }
}

}  // namespace

void dequantise_rows(const DequantiseRowsParams& params) {
  with_block_format(params.block_format, [&](auto format) {
    parallel_for(params.num_rows, grain_of(params.num_columns), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t row = params.row_ids[i];
        if (row < 0 || row >= params.num_matrix_rows) {
          throw std::out_of_range("dequantise_rows: row_ids[" + std::to_string(i) + "] is " + std::to_string(row) +
                                  ", but the matrix has " + std::to_string(params.num_matrix_rows) + " rows");
        }
        dequantise_row<decltype(format)>(params, row, params.out + i * params.num_columns);
      }
    });
  });
}

}  // namespace cudaprefill::cpu::CUDAPREFILL_ISA
