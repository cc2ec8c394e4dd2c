#include <algorithm>
#include <memory>
#include <vector>

#include "csrc/cpu/activate_and_mul.h"
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
constexpr int64_t kLineElements = 64 / sizeof(float);  // of a line of the caches

// A thread packs this much of the weights, at most 576 KiB, and passes all its rows of x by it: x comes from memory
// once for kPanels * kTileOutputs outputs. With blocks of 512 inputs, which cut 576 into two, it took 3 % longer, and
// with blocks of 768 a product with 1,536 inputs did.
constexpr int64_t kPanels = 2;
constexpr int64_t kBlockInputs = 1536;

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
  int64_t x_stride, out_stride;
  int64_t count;      // outputs that exist
  bool first_inputs;  // nothing is in `out` yet
  bool is_last;       // of those that the same rows pass by
  const float* bias;  // at the panel's first output, or null
};

// What the sums from output `first` of the panel on begin with: those over the earlier inputs, or the bias. So each sum
// is one chain through all inputs, however these are cut.
template <bool kWhole>
CUDAPREFILL_INLINE Vec before(const Panel& panel, const float* out, int first) {
  const float* from = panel.first_inputs ? panel.bias : out;
  if (from == nullptr || (!kWhole && first >= panel.count)) return zero();
  if (kWhole || first + Vec::kWidth <= panel.count) return load(from + first);
  return load_first(from + first, static_cast<int>(panel.count - first));
}

// `x` and `out` are the tile's first row, at the panel's first input and output. kWhole: all outputs of the panel
// exist.
template <int kRows, bool kWhole>
void run_tile(const Panel& panel, const float* x, float* out) {
  const int64_t x_stride = panel.x_stride, out_stride = panel.out_stride, inputs = panel.inputs;
  Vec sums[kRows][kTileVectors];
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 4
    for (int v = 0; v < kTileVectors; ++v) sums[m][v] = before<kWhole>(panel, out + m * out_stride, v * Vec::kWidth);
  }
  const float* at = panel.data;
  const auto add = [&](int64_t k) {
    Vec weight[kTileVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kTileVectors; ++v) weight[v] = load(at + v * Vec::kWidth);
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
      const Vec value = broadcast(x[m * x_stride + k]);
#pragma GCC unroll 4
      for (int v = 0; v < kTileVectors; ++v) sums[m][v] = fma(value, weight[v], sums[m][v]);
    }
    at += kTileOutputs;
  };
  int64_t k = 0;
  if (kRows == kTileRows && panel.is_last) {
    // The next tile's rows, which no core has had lately and of which the processor sees too many side by side to know
    // what comes. Without this it took 1 % longer, and 7 % in a machine whose third cache others were busy with.
    const float* next = x + kTileRows * x_stride;
    for (; k + kLineElements <= inputs; k += kLineElements) {
#pragma GCC unroll 8
      for (int m = 0; m < kRows; ++m) prefetch_to_second_cache(next + m * x_stride + k);
      for (int64_t i = k; i < k + kLineElements; ++i) add(i);
    }
  }
  for (; k < inputs; ++k) add(k);
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 4
    for (int v = 0; v < kTileVectors; ++v) {
      const int first = v * Vec::kWidth;
      float* to = out + m * out_stride + first;
      if (kWhole || first + Vec::kWidth <= panel.count) {
        store(to, sums[m][v]);
      } else if (first < panel.count) {
        store_first(to, sums[m][v], static_cast<int>(panel.count - first));
      }
    }
  }
}

// A tile of `rows` rows, at most kTileRows.
template <int kRows = kTileRows>
void run_rows(const Panel& panel, int64_t rows, const float* x, float* out) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return run_rows<kRows - 1>(panel, rows, x, out);
  }
  panel.count == kTileOutputs ? run_tile<kRows, true>(panel, x, out) : run_tile<kRows, false>(panel, x, out);
}

struct alignas(64) PackedWeights {
  float data[kPanels * kTileOutputs * kBlockInputs];
};

// Outputs of an item that share a panel, at most kTileOutputs.
struct PanelOutputs {
  int64_t first;  // row of the weights
  int64_t count;
  float* out;  // the item's first row of them
  int64_t out_stride;
  int64_t out_rows;  // so many rows there are, a multiple of kTileRows or all of the item: then it begins anew
};

// The blocks of inputs that a panel holds one after the other.
int64_t num_blocks(const LinearParams& params) {
  return std::max<int64_t>(1, (params.num_inputs + kBlockInputs - 1) / kBlockInputs);
}

// The rows first_row .. last_row - 1 of the outputs of an item. Calls finish(row, rows) when the sums of a tile of rows
// are whole.
template <class Source, class Finish>
void run_item(const LinearParams& params, const PanelOutputs* outputs, int64_t num_panels, int64_t first_row,
              int64_t last_row, const Finish& finish) {
  thread_local const std::unique_ptr<PackedWeights> packed(new PackedWeights);
  const int64_t blocks = num_blocks(params);
  const int64_t parts = (params.num_inputs + kPartElements - 1) / kPartElements;  // which blocks of weights keep whole
  const auto start_of = [&](int64_t block) {
    return std::min(params.num_inputs, block * parts / blocks * kPartElements);
  };
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t k = start_of(block);
    const int64_t inputs = start_of(block + 1) - k;
    Panel panels[kPanels];
    for (int64_t p = 0; p < num_panels; ++p) {
      float* data = packed->data + p * kTileOutputs * inputs;
      pack_weights<Source>(params, outputs[p].first, outputs[p].count, k, inputs, data);
      panels[p] = {.data = data,
                   .inputs = inputs,
                   .x_stride = params.x_stride,
                   .out_stride = outputs[p].out_stride,
                   .count = outputs[p].count,
                   .first_inputs = block == 0,
                   .is_last = p + 1 == num_panels,
                   .bias = params.bias == nullptr ? nullptr : params.bias + outputs[p].first};
    }
    for (int64_t row = first_row; row < last_row; row += kTileRows) {
      const int64_t rows = std::min<int64_t>(kTileRows, last_row - row);
      for (int64_t p = 0; p < num_panels; ++p) {
        float* out = outputs[p].out + (row - first_row) % outputs[p].out_rows * outputs[p].out_stride;
        run_rows(panels[p], rows, params.x + row * params.x_stride + k, out);
      }
      if (block + 1 == blocks) finish(row, rows);
    }
  }
}

// Calls run_item(source, first_output, first_row, last_row) for each item: `item_outputs` of the `num_outputs`, with
// all rows or with some. `source` says what the weights are stored as.
template <class RunItem>
void run_items(const LinearParams& params, int64_t num_outputs, int64_t item_outputs, const RunItem& run_item) {
  const int64_t output_items = (num_outputs + item_outputs - 1) / item_outputs;
  const int64_t wanted_row_items = 4 * num_threads() / std::max<int64_t>(1, output_items);
  const int64_t item_rows = std::max(kMinItemRows, params.num_rows / std::max<int64_t>(1, wanted_row_items));
  const int64_t row_items = (params.num_rows + item_rows - 1) / item_rows;
  const auto run = [&](auto source) {
    parallel_items(output_items * row_items, [&](int64_t item) {
      const int64_t first_row = item / output_items * item_rows;
      run_item(source, item % output_items * item_outputs, first_row, std::min(params.num_rows, first_row + item_rows));
    });
  };
  if (params.block_format == BlockFormat::kNone) {
    with_element_type(params.weight_dtype, run);
  } else {
    with_block_format(params.block_format, run);
  }
}

}  // namespace

void linear_many_rows(const LinearParams& params) {
  run_items(params, params.num_outputs, kPanels * kTileOutputs,
            [&](auto source, int64_t first_output, int64_t first_row, int64_t last_row) {
              PanelOutputs outputs[kPanels];
              int64_t num_panels = 0;
              for (int64_t output = first_output; num_panels < kPanels && output < params.num_outputs;
                   output += kTileOutputs) {
                outputs[num_panels++] = {.first = output,
                                         .count = std::min<int64_t>(kTileOutputs, params.num_outputs - output),
                                         .out = params.out + first_row * params.out_stride + output,
                                         .out_stride = params.out_stride,
                                         .out_rows = last_row - first_row};
              }
              run_item<decltype(source)>(params, outputs, num_panels, first_row, last_row, [](int64_t, int64_t) {});
            });
}

// The two panels of an item are gate's and up's of the same columns. The sums of gate are collected in `out`, those of
// up in memory of the thread, as many rows as wait for further blocks of inputs.
void gated_linear_many_rows(const GatedLinearParams& params) {
  static_assert(kPanels == 2);
  const LinearParams& gate_up = params.gate_up;
  const int64_t size = gate_up.num_outputs / 2;
  run_items(gate_up, size, kTileOutputs, [&](auto source, int64_t column, int64_t first_row, int64_t last_row) {
    thread_local std::vector<float> up_sums;
    const int64_t up_rows = num_blocks(gate_up) == 1 ? kTileRows : last_row - first_row;
    up_sums.resize(std::max(up_sums.size(), static_cast<size_t>(up_rows * kTileOutputs)));
    const int64_t count = std::min<int64_t>(kTileOutputs, size - column);
    const PanelOutputs outputs[kPanels] = {{.first = column,
                                            .count = count,
                                            .out = params.out + first_row * params.out_stride + column,
                                            .out_stride = params.out_stride,
                                            .out_rows = last_row - first_row},
                                           {.first = size + column,
                                            .count = count,
                                            .out = up_sums.data(),
                                            .out_stride = kTileOutputs,
                                            .out_rows = up_rows}};
    run_item<decltype(source)>(gate_up, outputs, kPanels, first_row, last_row, [&](int64_t row, int64_t rows) {
      with_activation(params.activation, [&](const auto& function) {
        for (int64_t i = row; i < row + rows; ++i) {
          float* out = params.out + i * params.out_stride + column;
          const float* up = up_sums.data() + (i - first_row) % up_rows * kTileOutputs;
          activate_and_mul_row(out, up, out, count, function);
        }
      });
    });
  });
}

}  // namespace cudaprefill::cpu::CUDAPREFILL_ISA
