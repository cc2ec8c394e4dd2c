// Weights in groups of blocks times activations that are rounded to 8 or 16 bits for each part of 32 inputs:
//
//   out[m, o] = bias[o] + sum over the parts p of  scale_x[m, p] (scale_w[o, p] sum(q_w q_x) + minimum_w[o, p]
//   sum(q_x))
//
// The inner sums are integers and exact, also where q_x has two digits: all products with the high ones, times 255,
// then those with the low ones on top. The outer one goes through the parts in their order, whatever the number of
// rows, of threads or of the outputs side by side, so a row's result depends on nothing but the row.
#include <algorithm>

#include "csrc/cpu/block_groups.h"
#include "csrc/cpu/kernel_declarations.h"
#include "csrc/cpu/quantised_rows.h"

namespace cudaprefill::cpu::CUDAPREFILL_ISA {
namespace {

// One tile: kTileRows rows of x times kTileColumns vectors of outputs. AVX-512 has registers for its sums of integers
// and of floats, 12 each, and the weights; the others have the floats in the nearest cache.
constexpr int kTileRows = CUDAPREFILL_ISA_AVX512 ? 4 : 2;
constexpr int kTileColumns = CUDAPREFILL_ISA_AVX512 ? 3 : 4;
constexpr int64_t kTileOutputs = kTileColumns * Vec::kWidth;

// Bytes of weights times rows that a thread takes at a time at least.
constexpr int64_t kItemBytes = 32 * 1024;

// Threads that find too few outputs also share the rows.
constexpr int64_t kMinItemRows = 64;

// The weights of a tile and where its outputs are. They are unpacked in registers for each tile of rows: unpacked ones
// kept for all rows gained nothing from 9 rows to 400, and cost a third at 9.
template <class Format>
struct TileWeights {
  CUDAPREFILL_INLINE Bytes operand(int c, int64_t part, int step) const {
    const Bytes bytes = Format::bytes(columns[c], part, step);
    return Format::kSigned ? with_offset(bytes) : bytes;
  }

  // Calls body(c, output, count) with the outputs of each column that has any.
  template <class Body>
  CUDAPREFILL_INLINE void for_each_column(const Body& body) const {
#pragma GCC unroll 4
    for (int c = 0; c < kTileColumns; ++c) {
      const int64_t output = first_output + c * Vec::kWidth;
      if (output < num_outputs) body(c, output, static_cast<int>(std::min<int64_t>(Vec::kWidth, num_outputs - output)));
    }
  }

  Column columns[kTileColumns];  // the last one of the matrix stands in for those past the end
  int64_t first_output, num_outputs;
};

template <class Format, int kDigits, int kRows>
void run_tile(const LinearParams& params, const QuantisedRows<Format, kDigits>& x, const TileWeights<Format>& weights,
              int64_t row) {
  constexpr int kStepsOfScale = kSteps / Format::kScalesOfPart;
  const int64_t num_parts = params.num_inputs / kPartElements;
  QuantisedRow rows[kRows];
  Vec sums[kRows][kTileColumns];
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) {
    rows[m] = x[row + m];
#pragma GCC unroll 4
    for (int c = 0; c < kTileColumns; ++c) sums[m][c] = zero();
  }
  if (params.bias != nullptr) {
    weights.for_each_column([&](int c, int64_t output, int count) {
      const float* bias = params.bias + output;
      const Vec values = count == Vec::kWidth ? load(bias) : load_first(bias, count);
#pragma GCC unroll 8
      for (int m = 0; m < kRows; ++m) sums[m][c] = values;
    });
  }
  for (int64_t part = 0; part < num_parts; ++part) {
#pragma GCC unroll 2
    for (int s = 0; s < Format::kScalesOfPart; ++s) {
      Ints dots[kRows][kTileColumns];
#pragma GCC unroll 2
      for (int digit = 0; digit < kDigits; ++digit) {
#pragma GCC unroll 8
        for (int m = 0; m < kRows; ++m) {
          const bool has_offset = kOperandOffset<Format> != 0 && digit == kDigits - 1;
          const Ints start = broadcast_int(has_offset ? rows[m].offsets[part * Format::kScalesOfPart + s] : 0);
#pragma GCC unroll 4
          for (int c = 0; c < kTileColumns; ++c) dots[m][c] = digit == 0 ? start : times_255_plus(dots[m][c], start);
        }
#pragma GCC unroll 8
        for (int step = s * kStepsOfScale; step < (s + 1) * kStepsOfScale; ++step) {
          Bytes of_column[kTileColumns];
#pragma GCC unroll 4
          for (int c = 0; c < kTileColumns; ++c) of_column[c] = weights.operand(c, part, step);
#pragma GCC unroll 8
          for (int m = 0; m < kRows; ++m) {
            const Bytes four = broadcast_bytes(rows[m].digits + (part * kDigits + digit) * kPartElements + 4 * step);
#pragma GCC unroll 4
            for (int c = 0; c < kTileColumns; ++c) {
              dots[m][c] = Format::kSigned ? multiply_add_signed(dots[m][c], of_column[c], four)
                                           : multiply_add(dots[m][c], of_column[c], four);
            }
          }
        }
      }
#pragma GCC unroll 4
      for (int c = 0; c < kTileColumns; ++c) {
        const Vec scale = Format::scale(weights.columns[c], part, s);
#pragma GCC unroll 8
        for (int m = 0; m < kRows; ++m) {
          sums[m][c] = fma(to_float(dots[m][c]), scale * broadcast(rows[m].scales[part]), sums[m][c]);
        }
      }
    }
    if constexpr (Format::kHasMinimum) {
#pragma GCC unroll 4
      for (int c = 0; c < kTileColumns; ++c) {
        const Vec minimum = Format::minimum(weights.columns[c], part);
#pragma GCC unroll 8
        for (int m = 0; m < kRows; ++m) {
          sums[m][c] = fma(minimum, broadcast(rows[m].sums[part]), sums[m][c]);
        }
      }
    }
  }
  weights.for_each_column([&](int c, int64_t output, int count) {
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
      float* out = params.out + (row + m) * params.out_stride + output;
      count == Vec::kWidth ? store(out, sums[m][c]) : store_first(out, sums[m][c], count);
    }
  });
}

// A tile of `rows` rows, at most kTileRows.
template <class Format, int kDigits, int kRows = kTileRows>
void run_rows(const LinearParams& params, const QuantisedRows<Format, kDigits>& x, const TileWeights<Format>& weights,
              int64_t row, int64_t rows) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return run_rows<Format, kDigits, kRows - 1>(params, x, weights, row, rows);
  }
  run_tile<Format, kDigits, kRows>(params, x, weights, row);
}

// All tiles of the rows first .. last - 1, as even as they can be: one of few rows has too few sums at work.
template <class Format, int kDigits>
void run_tiles(const LinearParams& params, const QuantisedRows<Format, kDigits>& x, const TileWeights<Format>& weights,
               int64_t first, int64_t last) {
  const int64_t tiles = (last - first + kTileRows - 1) / kTileRows;
  for (int64_t tile = 0; tile < tiles; ++tile) {
    const int64_t row = first + tile * (last - first) / tiles;
    run_rows<Format, kDigits>(params, x, weights, row, first + (tile + 1) * (last - first) / tiles - row);
  }
}

template <class Format>
TileWeights<Format> weights_of_tile(const LinearParams& params, int64_t tile) {
  const int64_t num_columns = (params.num_outputs + Vec::kWidth - 1) / Vec::kWidth;
  TileWeights<Format> weights;
  for (int c = 0; c < kTileColumns; ++c) {
    weights.columns[c] =
        column_at<Format>(static_cast<const uint8_t*>(params.weight), params.weight_stride,
                          std::min(tile * kTileColumns + c, num_columns - 1), params.num_inputs / kPartElements);
  }
  weights.first_output = tile * kTileOutputs;
  weights.num_outputs = params.num_outputs;
  return weights;
}

template <class Format, int kDigits>
void run(const LinearParams& params) {
  const QuantisedRows<Format, kDigits> x(params.num_rows, params.num_inputs);
  parallel_for(params.num_rows, grain_of(params.num_inputs), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) x.fill(row, params.x + row * params.x_stride);
  });

  // An item is some tiles of outputs with all rows, or with some.
  const int64_t tile_bytes = group_bytes(params.block_format, params.num_inputs) * kTileOutputs / kGroupRows;
  const int64_t item_tiles =
      std::max<int64_t>(1, kItemBytes / std::max<int64_t>(1, tile_bytes * std::max<int64_t>(1, params.num_rows)));
  const int64_t tiles = (params.num_outputs + kTileOutputs - 1) / kTileOutputs;
  const int64_t output_items = (tiles + item_tiles - 1) / item_tiles;
  const int64_t wanted_row_items = 4 * num_threads() / std::max<int64_t>(1, output_items);
  const int64_t item_rows = std::max(kMinItemRows, params.num_rows / std::max<int64_t>(1, wanted_row_items));
  const int64_t row_items = (params.num_rows + item_rows - 1) / item_rows;
  parallel_items(output_items * row_items, [&](int64_t item) {
    const int64_t first_tile = item % output_items * item_tiles, row = item / output_items * item_rows;
    for (int64_t tile = first_tile; tile < std::min(tiles, first_tile + item_tiles); ++tile) {
      run_tiles<Format, kDigits>(params, x, weights_of_tile<Format>(params, tile), row,
                                 std::min(params.num_rows, row + item_rows));
    }
  });
}

}  // namespace

void linear_integers(const LinearParams& params) {
  with_block_format(params.block_format, [&](auto format) {
    using Format = decltype(format);
    params.activation_bits == 8 ? run<Format, 1>(params) : run<Format, 2>(params);
  });
}

}  // namespace cudaprefill::cpu::CUDAPREFILL_ISA
