// Weights in groups of blocks times activations that are rounded to 8 or 16 bits for each part of 32 inputs:
//
//   out[m, o] = bias[o] + sum over the parts p of  scale_x[m, p] (scale_w[o, p] sum(q_w q_x) + minimum_w[o, p]
//   sum(q_x))
//
// The inner sums are integers and exact: of 8 bits four products a lane are added at once, of 16 bits two, with the
// weights widened to 16 bits. The outer one goes through the parts in their order, whatever the number of
// rows, of threads or of the outputs side by side, so a row's result depends on nothing but the row.
#include <algorithm>

#include "csrc/cpu/activate_and_mul.h"
#include "csrc/cpu/block_groups.h"
#include "csrc/cpu/gated_linear.h"
#include "csrc/cpu/kernel_declarations.h"
#include "csrc/cpu/quantised_rows.h"

namespace cudaprefill::cpu::CUDAPREFILL_ISA {
namespace {

// One tile: kTileRows rows of x times kTileColumns vectors of outputs. AVX-512 has registers for its sums of integers
// and of floats, 12 each, and the weights; the others have the floats in the nearest cache. With AVX-512, of the tiles
// of up to 8 rows and 4 columns none was faster, on a Zen 5.
constexpr int kTileRows = CUDAPREFILL_ISA_AVX512 ? 4 : 2;
constexpr int kTileColumns = CUDAPREFILL_ISA_AVX512 ? 3 : 4;
constexpr int64_t kTileOutputs = kTileColumns * Vec::kWidth;

// Bytes of weights times rows that a thread takes at a time at least.
constexpr int64_t kItemBytes = 32 * 1024;

// Threads that find too few outputs also share the rows.
constexpr int64_t kMinItemRows = 64;

// Rows whose gate and up a thread has before it applies the activation to them: 24 KiB with AVX-512.
constexpr int64_t kGatedRows = 64;

// Up to this many rows, whose products take about as long as memory takes to give the weights, a tile asks for the
// weights of the next one. That is a fifth to a quarter of the time at 4 to 16 rows, and about an eighth at one.
constexpr int64_t kMostRowsPrefetching = 64;

// What weights in a Format and activations of type Quant are multiplied as: operands of four bytes or of two words a
// lane, of which `kOfStep` make a step of four elements.
template <class Format, class Quant>
struct Operands;

template <class Format>
struct Operands<Format, int8_t> {
  using Operand = Bytes;
  static constexpr int kOfStep = 1;
  CUDAPREFILL_INLINE static Bytes of_weights(Bytes bytes, int) { return Format::kSigned ? with_offset(bytes) : bytes; }
  CUDAPREFILL_INLINE static Bytes of_x(const int8_t* four) { return broadcast_bytes(four); }
  CUDAPREFILL_INLINE static Ints multiply_add(Ints sums, Bytes w, Bytes x) {
    return Format::kSigned ? multiply_add_signed(sums, w, x) : CUDAPREFILL_ISA::multiply_add(sums, w, x);
  }
};

template <class Format>
struct Operands<Format, int16_t> {
  using Operand = Words;
  static constexpr int kOfStep = 2;
  CUDAPREFILL_INLINE static Words of_weights(Bytes bytes, int number) {
    if constexpr (Format::kSigned) return number == 0 ? even_signed_words(bytes) : odd_signed_words(bytes);
    return number == 0 ? even_words(bytes) : odd_words(bytes);
  }
  CUDAPREFILL_INLINE static Words of_x(const int16_t* two) { return broadcast_words(two); }
  CUDAPREFILL_INLINE static Ints multiply_add(Ints sums, Words w, Words x) {
    return CUDAPREFILL_ISA::multiply_add(sums, w, x);
  }
};

// The weights of a tile and where its outputs are. They are unpacked, and their scales widened, in registers for each
// tile of rows: kept for all rows, either was slower.
template <class Format>
struct TileWeights {
  // The outputs `first` .. end - 1, but kTileOutputs at most; `first` is a multiple of Vec::kWidth. Row `first_row` of
  // what they become begins at `out`.
  TileWeights(const LinearParams& params, int64_t first, int64_t end, float* out, int64_t out_stride, int64_t first_row)
      : first_output(first), end_output(end), out_(out), out_stride_(out_stride), first_row_(first_row) {
    static_assert(kTileOutputs % kGroupRows == 0);
    const auto* groups = static_cast<const uint8_t*>(params.weight);
    next = groups + (first + kTileOutputs) / kGroupRows * params.weight_stride;
    const int64_t num_columns = (params.num_outputs + Vec::kWidth - 1) / Vec::kWidth;
#pragma GCC unroll 4
    for (int c = 0; c < kTileColumns; ++c) {
      columns[c] = column_at<Format>(groups, params.weight_stride, std::min(first / Vec::kWidth + c, num_columns - 1),
                                     params.num_inputs / kPartElements);
    }
  }

  CUDAPREFILL_INLINE float* out(int64_t row, int64_t output) const {
    return out_ + (row - first_row_) * out_stride_ + output - first_output;
  }

  // Calls body(c, output, count) with the outputs of each column that has any.
  template <class Body>
  CUDAPREFILL_INLINE void for_each_column(const Body& body) const {
#pragma GCC unroll 4
    for (int c = 0; c < kTileColumns; ++c) {
      const int64_t output = first_output + c * Vec::kWidth;
      if (output < end_output) body(c, output, static_cast<int>(std::min<int64_t>(Vec::kWidth, end_output - output)));
    }
  }

  // Asks for as much of the next tile's weights as belongs to a part.
  CUDAPREFILL_INLINE void prefetch_next(int64_t part) const {
    constexpr int64_t kBytes = group_bytes(Format::kFormat, kPartElements * Format::kPartsOfBlock) /
                               Format::kPartsOfBlock * (kTileOutputs / kGroupRows);
    for (int64_t i = 0; i < kBytes; i += 64) prefetch_to_second_cache(next + part * kBytes + i);
  }

  int64_t first_output, end_output;
  const uint8_t* next;           // where the next tile's weights are, or would be
  Column columns[kTileColumns];  // the last one of the matrix stands in for those past the end

 private:
  float* out_;
  int64_t out_stride_, first_row_;
};

// `prefetches` the weights of the next tile on the way.
template <class Format, class Quant, int kRows>
void run_tile(const LinearParams& params, const QuantisedRows<Format, Quant>& x, const TileWeights<Format>& weights,
              int64_t row, bool prefetches) {
  using Operands = Operands<Format, Quant>;
  constexpr int kStepsOfScale = kSteps / Format::kScalesOfPart;
  constexpr bool kHasMore = kRows * kTileColumns <= 6;  // so few sums would wait for each other
  const int64_t num_parts = params.num_inputs / kPartElements;
  QuantisedRow<Quant> rows[kRows];
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
    if (prefetches) weights.prefetch_next(part);
#pragma GCC unroll 2
    for (int s = 0; s < Format::kScalesOfPart; ++s) {
      Ints dots[kRows][kTileColumns], more[kRows][kTileColumns];
#pragma GCC unroll 8
      for (int m = 0; m < kRows; ++m) {
        const bool has_offset = kOperandOffset<Format, Quant> != 0;
        const Ints start = broadcast_int(has_offset ? rows[m].offsets[part * Format::kScalesOfPart + s] : 0);
#pragma GCC unroll 4
        for (int c = 0; c < kTileColumns; ++c) {
          dots[m][c] = start;
          more[m][c] = broadcast_int(0);
        }
      }
#pragma GCC unroll 8
      for (int step = s * kStepsOfScale; step < (s + 1) * kStepsOfScale; ++step) {
#pragma GCC unroll 2
        for (int i = 0; i < Operands::kOfStep; ++i) {
          typename Operands::Operand of_column[kTileColumns];
#pragma GCC unroll 4
          for (int c = 0; c < kTileColumns; ++c)
            of_column[c] = Operands::of_weights(Format::bytes(weights.columns[c], part, step), i);
#pragma GCC unroll 8
          for (int m = 0; m < kRows; ++m) {
            const Quant* quants = rows[m].quants + part * kPartElements + 4 * step + i * (4 / Operands::kOfStep);
            const typename Operands::Operand of_row = Operands::of_x(quants);
#pragma GCC unroll 4
            for (int c = 0; c < kTileColumns; ++c) {
              Ints& sum = kHasMore && (step * Operands::kOfStep + i) % 2 == 1 ? more[m][c] : dots[m][c];
              sum = Operands::multiply_add(sum, of_column[c], of_row);
            }
          }
        }
      }
#pragma GCC unroll 4
      for (int c = 0; c < kTileColumns; ++c) {
        const Vec scale = Format::scale(weights.columns[c], part, s);
#pragma GCC unroll 8
        for (int m = 0; m < kRows; ++m) {
          const Ints dot = kHasMore ? dots[m][c] + more[m][c] : dots[m][c];
          sums[m][c] = fma(to_float(dot), scale * broadcast(rows[m].scales[part]), sums[m][c]);
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
      float* out = weights.out(row + m, output);
      count == Vec::kWidth ? store(out, sums[m][c]) : store_first(out, sums[m][c], count);
    }
  });
}

// A tile of `rows` rows, at most kTileRows.
template <class Format, class Quant, int kRows = kTileRows>
void run_rows(const LinearParams& params, const QuantisedRows<Format, Quant>& x, const TileWeights<Format>& weights,
              int64_t row, int64_t rows, bool prefetches) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return run_rows<Format, Quant, kRows - 1>(params, x, weights, row, rows, prefetches);
  }
  run_tile<Format, Quant, kRows>(params, x, weights, row, prefetches);
}

// The rows first .. last - 1 of one tile of outputs, in tiles as even as they can be: one of few rows has too few sums
// at work.
template <class Format, class Quant>
void run_tiles(const LinearParams& params, const QuantisedRows<Format, Quant>& x, const TileWeights<Format>& weights,
               int64_t first, int64_t last) {
  const int64_t tiles = (last - first + kTileRows - 1) / kTileRows;
  const bool few_rows = last - first <= kMostRowsPrefetching;
  for (int64_t tile = 0; tile < tiles; ++tile) {
    const int64_t row = first + tile * (last - first) / tiles;
    run_rows<Format, Quant>(params, x, weights, row, first + (tile + 1) * (last - first) / tiles - row,
                            few_rows && tile == 0);
  }
}

// Calls run_tile(x, tile, first_row, last_row) for each of `num_tiles` tiles of outputs, whose weights take
// `tile_bytes`, with all rows of the rounded x or with some.
template <class Format, class Quant, class RunTile>
void for_each_tile(const LinearParams& params, int64_t num_tiles, int64_t tile_bytes, const RunTile& run_tile) {
  const QuantisedRows<Format, Quant> x(params.num_rows, params.num_inputs);
  parallel_for(params.num_rows, grain_of(params.num_inputs), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) x.fill(row, params.x + row * params.x_stride);
  });

  // An item is some tiles with all rows, or with some.
  const int64_t item_tiles =
      std::max<int64_t>(1, kItemBytes / std::max<int64_t>(1, tile_bytes * std::max<int64_t>(1, params.num_rows)));
  const int64_t output_items = (num_tiles + item_tiles - 1) / item_tiles;
  const int64_t wanted_row_items = 4 * num_threads() / std::max<int64_t>(1, output_items);
  const int64_t item_rows = std::max(kMinItemRows, params.num_rows / std::max<int64_t>(1, wanted_row_items));
  const int64_t row_items = (params.num_rows + item_rows - 1) / item_rows;
  parallel_items(output_items * row_items, [&](int64_t item) {
    const int64_t first_tile = item % output_items * item_tiles, row = item / output_items * item_rows;
    for (int64_t tile = first_tile; tile < std::min(num_tiles, first_tile + item_tiles); ++tile) {
      run_tile(x, tile, row, std::min(params.num_rows, row + item_rows));
    }
  });
}

int64_t tiles_of(int64_t num_outputs) { return (num_outputs + kTileOutputs - 1) / kTileOutputs; }

int64_t tile_bytes(const LinearParams& params) {
  return group_bytes(params.block_format, params.num_inputs) * kTileOutputs / kGroupRows;
}

template <class Format, class Quant>
void run(const LinearParams& params) {
  for_each_tile<Format, Quant>(
      params, tiles_of(params.num_outputs), tile_bytes(params),
      [&](const QuantisedRows<Format, Quant>& x, int64_t tile, int64_t first_row, int64_t last_row) {
        const int64_t output = tile * kTileOutputs;
        float* out = params.out + first_row * params.out_stride + output;
        const TileWeights<Format> weights(params, output, params.num_outputs, out, params.out_stride, first_row);
        run_tiles(params, x, weights, first_row, last_row);
      });
}

// Tiles of gate and of up go together, so that the activation is applied to what is in a near cache.
template <class Format, class Quant>
void run_gated(const GatedLinearParams& params) {
  const LinearParams& gate_up = params.gate_up;
  const int64_t size = gate_up.num_outputs / 2;
  for_each_tile<Format, Quant>(
      gate_up, tiles_of(size), 2 * tile_bytes(gate_up),
      [&](const QuantisedRows<Format, Quant>& x, int64_t tile, int64_t first_row, int64_t last_row) {
        alignas(64) float gate[kGatedRows][kTileOutputs], up[kGatedRows][kTileOutputs];
        const int64_t column = tile * kTileOutputs, count = std::min<int64_t>(kTileOutputs, size - column);
        for (int64_t row = first_row; row < last_row; row += kGatedRows) {
          const int64_t end = std::min(last_row, row + kGatedRows);
          const TileWeights<Format> of_gate(gate_up, column, size, gate[0], kTileOutputs, row);
          const TileWeights<Format> of_up(gate_up, size + column, gate_up.num_outputs, up[0], kTileOutputs, row);
          run_tiles(gate_up, x, of_gate, row, end);
          run_tiles(gate_up, x, of_up, row, end);
          with_activation(params.activation, [&](const auto& function) {
            for (int64_t i = row; i < end; ++i) {
              float* out = params.out + i * params.out_stride + column;
              activate_and_mul_row(gate[i - row], up[i - row], out, count, function);
            }
          });
        }
      });
}

// Calls run(Format{}, Quant{}).
template <class Run>
void with_numbers(const LinearParams& params, const Run& run) {
  with_block_format(params.block_format,
                    [&](auto format) { params.activation_bits == 8 ? run(format, int8_t{}) : run(format, int16_t{}); });
}

}  // namespace

void linear_integers(const LinearParams& params) {
  with_numbers(params, [&](auto format, auto quant) { run<decltype(format), decltype(quant)>(params); });
}

void gated_linear_integers(const GatedLinearParams& params) {
  // One or two rows read their weights faster in one run than from gate and up by turns: one row in 0.84 to 0.89 of it.
  const bool gains = params.gate_up.num_rows > 2 && params.gate_up.num_outputs / 2 % Vec::kWidth == 0;
  if (!gains) return gated_linear_in_two_steps(params);
  with_numbers(params.gate_up, [&](auto format, auto quant) { run_gated<decltype(format), decltype(quant)>(params); });
}

}  // namespace cudaprefill::cpu::CUDAPREFILL_ISA
