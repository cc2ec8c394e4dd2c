#include <algorithm>
#include <memory>

#include "csrc/cpu/block_groups.h"
#include "csrc/cpu/linear_kernels.h"
#include "csrc/cpu/parallel.h"
#include "csrc/cpu/simd.h"

namespace cudaprefill::cpu::CUDAPREFILL_ISA {
namespace {

// One tile: kTileRows rows of x times kTileOutputs outputs, its sums in registers (24, 12 and 8 vectors of the 32, 16
// and 16 there are).
//
//                          kTileOutputs
//                        +--------------+
//        kTileRows  x[k] |     out      |   for each k: one row of the panel times kTileRows broadcast values of x
//                        +--------------+
//                        panel[k][....]
constexpr int kTileRows = CUDAPREFILL_ISA_AVX512 ? 8 : CUDAPREFILL_ISA_AVX2 ? 6 : 4;
constexpr int kTileVectors = CUDAPREFILL_ISA_AVX512 ? 3 : 2;
constexpr int kTileOutputs = kTileVectors * Vec::kWidth;

// A thread packs this much of the weights, at most 288 KiB, and passes all its rows of x by it: x comes from memory
// once for kPanels * kTileOutputs outputs. With blocks of 512 inputs, which cut 576 into two, it took 3 % longer.
constexpr int64_t kPanels = 2;
constexpr int64_t kBlockInputs = 768;
constexpr int64_t kItemOutputs = kPanels * kTileOutputs;

// Threads that find too few outputs to share also share the rows, and each packs its weights anew: worth it for so many
// rows at least. Sharing rows first, so that a row stays with one core from op to op, was 1 to 4 % slower.
constexpr int64_t kMinItemRows = 64;

// kTileOutputs weight rows of which `count` exist, turned to [inputs][kTileOutputs]. The others repeat the last one:
// what is made of them is never stored.
template <class Weight>
void pack_panel(const Weight* weights, int64_t stride, int64_t count, int64_t inputs, float* panel) {
  for (int first = 0; first < kTileOutputs; first += Vec::kWidth) {
    const auto row = [&](int i) { return weights + std::min<int64_t>(first + i, count - 1) * stride; };
    const auto store_columns = [&](Vec(&square)[Vec::kWidth], int64_t k, int columns) {
      transpose(square);
      for (int i = 0; i < columns; ++i) store(panel + (k + i) * kTileOutputs + first, square[i]);
    };
    for_each_vector(
        inputs,
        [&](int64_t k) {
          Vec square[Vec::kWidth];
#pragma GCC unroll 16
          for (int i = 0; i < Vec::kWidth; ++i) square[i] = load(row(i) + k);
          store_columns(square, k, Vec::kWidth);
        },
        [&](int64_t k, int columns) {
          Vec square[Vec::kWidth];
          for (int i = 0; i < Vec::kWidth; ++i) square[i] = load_first(row(i) + k, columns);
          store_columns(square, k, columns);
        });
  }
}

// The weights of a call in the same form. `Source` says what they are stored as: an element type, or a format of
// blocks.
template <class Source>
void pack_weights(const LinearParams& params, int64_t output, int64_t count, int64_t k, int64_t inputs, float* panel) {
  if constexpr (requires { Source::kFormat; }) {
    for (int first = 0; first < kTileOutputs; first += Vec::kWidth) {
      const int64_t exists = std::min<int64_t>(output + first, params.num_outputs - 1);
      const Column column = column_at<Source>(static_cast<const uint8_t*>(params.weight), params.weight_stride,
                                              exists / Vec::kWidth, params.num_inputs / kPartElements);
      float* to = panel + first;
      for (int64_t part = k / kPartElements; part < (k + inputs) / kPartElements; ++part) {
        for_each_element<Source>(column, part, [&](int i, Vec weights) { store(to + i * kTileOutputs, weights); });
        to += kPartElements * kTileOutputs;
      }
    }
  } else {
    pack_panel(static_cast<const Source*>(params.weight) + output * params.weight_stride + k, params.weight_stride,
               count, inputs, panel);
  }
}

// A panel and what to do with it.
struct Panel {
  const float* data;
  int64_t inputs;
  const float* x;  // at the panel's first input
  float* out;      // at the panel's first output
  int64_t x_stride, out_stride;
  int64_t count;      // outputs that exist
  bool first_inputs;  // nothing is in `out` yet
  const float* bias;  // at the panel's first output, or null
};

// What the sums from output `first` of the panel on begin with: those over the earlier inputs, or the bias. So each sum
// is one chain through all inputs, however these are cut.
CUDAPREFILL_INLINE Vec before(const Panel& panel, const float* out, int first) {
  const float* from = panel.first_inputs ? panel.bias + first : out + first;
  if ((panel.first_inputs && panel.bias == nullptr) || first >= panel.count) return zero();
  return first + Vec::kWidth <= panel.count ? load(from) : load_first(from, static_cast<int>(panel.count - first));
}

template <int kRows>
void run_tile(const Panel& panel, int64_t row) {
  Vec sums[kRows][kTileVectors];
  const float* x[kRows];
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) {
    x[m] = panel.x + (row + m) * panel.x_stride;
#pragma GCC unroll 4
    for (int v = 0; v < kTileVectors; ++v) {
      sums[m][v] = before(panel, panel.out + (row + m) * panel.out_stride, v * Vec::kWidth);
    }
  }
  const float* at = panel.data;
  for (int64_t k = 0; k < panel.inputs; ++k, at += kTileOutputs) {
    Vec weight[kTileVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kTileVectors; ++v) weight[v] = load(at + v * Vec::kWidth);
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
      const Vec value = broadcast(x[m][k]);
#pragma GCC unroll 4
      for (int v = 0; v < kTileVectors; ++v) sums[m][v] = fma(value, weight[v], sums[m][v]);
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 4
    for (int v = 0; v < kTileVectors; ++v) {
      const int first = v * Vec::kWidth;
      float* out = panel.out + (row + m) * panel.out_stride + first;
      if (first + Vec::kWidth <= panel.count) {
        store(out, sums[m][v]);
      } else if (first < panel.count) {
        store_first(out, sums[m][v], static_cast<int>(panel.count - first));
      }
    }
  }
}

template <int kRows = kTileRows>
void run_rows(const Panel& panel, int64_t row, int64_t rows) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return run_rows<kRows - 1>(panel, row, rows);
  }
  run_tile<kRows>(panel, row);
}

struct alignas(64) PackedWeights {
  float data[kItemOutputs * kBlockInputs];
};

// The outputs first_output .. last_output - 1, at most kItemOutputs, of the rows first_row .. last_row - 1.
template <class Source>
void run_item(const LinearParams& params, int64_t first_output, int64_t last_output, int64_t first_row,
              int64_t last_row) {
  thread_local const std::unique_ptr<PackedWeights> packed(new PackedWeights);
  const int64_t blocks = std::max<int64_t>(1, (params.num_inputs + kBlockInputs - 1) / kBlockInputs);
  const int64_t parts = (params.num_inputs + kPartElements - 1) / kPartElements;  // which blocks of weights keep whole
  const auto start_of = [&](int64_t block) {
    return std::min(params.num_inputs, block * parts / blocks * kPartElements);
  };
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t k = start_of(block);
    const int64_t inputs = start_of(block + 1) - k;
    Panel panels[kPanels];
    int64_t num_panels = 0;
    for (int64_t output = first_output; output < last_output; output += kTileOutputs) {
      float* data = packed->data + num_panels * kTileOutputs * inputs;
      const int64_t count = std::min<int64_t>(kTileOutputs, last_output - output);
      pack_weights<Source>(params, output, count, k, inputs, data);
      panels[num_panels++] = {.data = data,
                              .inputs = inputs,
                              .x = params.x + k,
                              .out = params.out + output,
                              .x_stride = params.x_stride,
                              .out_stride = params.out_stride,
                              .count = count,
                              .first_inputs = block == 0,
                              .bias = params.bias == nullptr ? nullptr : params.bias + output};
    }
    for (int64_t row = first_row; row < last_row; row += kTileRows) {
      for (int64_t p = 0; p < num_panels; ++p) run_rows(panels[p], row, last_row - row);
    }
  }
}

}  // namespace

void linear_many_rows(const LinearParams& params) {
  const int64_t output_items = (params.num_outputs + kItemOutputs - 1) / kItemOutputs;
  const int64_t wanted_row_items = 4 * num_threads() / std::max<int64_t>(1, output_items);
  const int64_t item_rows = std::max(kMinItemRows, params.num_rows / std::max<int64_t>(1, wanted_row_items));
  const int64_t row_items = (params.num_rows + item_rows - 1) / item_rows;
  const auto run = [&](auto source) {
    parallel_items(output_items * row_items, [&](int64_t item) {
      const int64_t output = item % output_items * kItemOutputs;
      const int64_t row = item / output_items * item_rows;
      run_item<decltype(source)>(params, output, std::min(params.num_outputs, output + kItemOutputs), row,
                                 std::min(params.num_rows, row + item_rows));
    });
  };
  if (params.block_format == BlockFormat::kNone) {
    with_element_type(params.weight_dtype, run);
  } else {
    with_block_format(params.block_format, run);
  }
}

}  // namespace cudaprefill::cpu::CUDAPREFILL_ISA
