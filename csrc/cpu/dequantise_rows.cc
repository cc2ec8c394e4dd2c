#include <stdexcept>
#include <string>

#include "csrc/cpu/block_formats.h"
#include "csrc/cpu/kernel_declarations.h"
#include "csrc/cpu/parallel.h"

namespace cudaprefill::cpu::CUDAPREFILL_ISA {

void dequantise_rows(const DequantiseRowsParams& params) {
  with_block_format(params.block_format, [&](auto format) {
    parallel_for(params.num_rows, grain_of(params.num_columns), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t row = params.row_ids[i];
        if (row < 0 || row >= params.num_matrix_rows) {
          throw std::out_of_range("dequantise_rows: row_ids[" + std::to_string(i) + "] is " + std::to_string(row) +
                                  ", but the matrix has " + std::to_string(params.num_matrix_rows) + " rows");
        }
        decode_row<decltype(format)>(static_cast<const uint8_t*>(params.blocks) + row * params.row_bytes, 0,
                                     params.num_columns, params.out + i * params.num_columns);
      }
    });
  });
}

}  // namespace cudaprefill::cpu::CUDAPREFILL_ISA
