// out += scale * (x @ a^T) @ b for the rows of each adapter. Two products by way of `rank` numbers a row: `shrink`
// makes them, a dot product each, `expand` spreads them over the outputs.
//
//                    a [rank, inputs]              b [rank, outputs], in tiles of kLoraTile
//   x [row, inputs] -----shrink-----> low [row, rank] -----expand-----> out [row, outputs]
//
// An item is a tile of rows of one adapter, which needs nothing of the others. Where there are fewer of them than
// threads, the ranks and then the outputs are shared as well.
#include <algorithm>
#include <vector>

#include "csrc/cpu/kernel_declarations.h"
#include "csrc/cpu/lora_checks.h"
#include "csrc/cpu/parallel.h"
#include "csrc/cpu/simd.h"

namespace cudaprefill::cpu::CUDAPREFILL_ISA {
namespace {

constexpr int kTileRows = 48;
// Register tiles: rows times ranks, and rows times vectors of outputs.
constexpr int kRowGroup = CUDAPREFILL_ISA_AVX512 ? 6 : 2;
constexpr int kRanks = 4;
constexpr int kVectors = 4;
static_assert(kLoraTile % (kVectors * Vec::kWidth) == 0);

// With few rows, reading the matrices is all that takes time, in runs too short for the hardware to foresee: an
// adapter's part in one layer. So both products ask for memory this far ahead, where in the end the next part begins.
constexpr int64_t kBytesAhead = 8192;

// What a thread takes at a time where the tiles are too few: as many ranks, as many outputs.
constexpr int kPieceRanks = 2 * kRanks;
constexpr int64_t kPieceOutputs = 4 * kLoraTile;

struct Tile {
  int32_t adapter, first, last;  // rows row_ids[first .. last]
};

// low[m][j] = scale * x[m] . a[j] for kRows rows and the `count` <= kRanks rows of a.
template <int kRows, class T, class Weight>
void shrink_rows(const AddLoraParams& params, const int32_t* row_ids, const Weight* a, int count, float scale,
                 float* low, int64_t low_stride) {
  const T* x[kRows];
  const Weight* weights[kRanks];
  Vec sums[kRows][kRanks];
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) {
    x[m] = static_cast<const T*>(params.x) + row_ids[m] * params.x_stride;
#pragma GCC unroll 4
    for (int j = 0; j < kRanks; ++j) sums[m][j] = zero();
  }
#pragma GCC unroll 4
  for (int j = 0; j < kRanks; ++j) weights[j] = a + std::min(j, count - 1) * params.num_inputs;
  const auto add = [&](const auto& load_some, int64_t k) {
    Vec weight[kRanks];
#pragma GCC unroll 4
    for (int j = 0; j < kRanks; ++j) {
      prefetch(weights[j] + kRanks * params.num_inputs + k);  // the next ones'
      weight[j] = load_some(weights[j] + k);
    }
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
      const Vec value = load_some(x[m] + k);
#pragma GCC unroll 4
      for (int j = 0; j < kRanks; ++j) sums[m][j] = fma(value, weight[j], sums[m][j]);
    }
  };
  for_each_vector(
      params.num_inputs, [&](int64_t k) { add([](const auto* from) { return load(from); }, k); },
      [&](int64_t k, int left) { add([left](const auto* from) { return load_first(from, left); }, k); });
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) {
    float of_row[kRanks];
    store_sums(of_row, sums[m][0], sums[m][1], sums[m][2], sums[m][3]);
    for (int j = 0; j < count; ++j) low[m * low_stride + j] = scale * of_row[j];
  }
}

// out[m] += low[m] @ b for kRows rows and kVectors vectors of outputs, of which `count` outputs exist.
template <int kRows, class T, class Weight>
void expand_rows(const AddLoraParams& params, const int32_t* row_ids, const Weight* b, int64_t rank, const float* low,
                 int64_t low_stride, int64_t first_output, int64_t count) {
  Vec sums[kRows][kVectors];
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sums[m][v] = zero();
  }
  for (int64_t j = 0; j < rank; ++j, b += kLoraTile) {
    Vec weight[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      prefetch(reinterpret_cast<const char*>(b + v * Vec::kWidth) + kBytesAhead);
      weight[v] = load(b + v * Vec::kWidth);
    }
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
      const Vec value = broadcast(low[m * low_stride + j]);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[m][v] = fma(value, weight[v], sums[m][v]);
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) {
    T* out = static_cast<T*>(params.out) + row_ids[m] * params.out_stride + first_output;
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v, out += Vec::kWidth) {
      const int64_t left = count - v * Vec::kWidth;
      if (left >= Vec::kWidth) {
        store(out, load(out) + sums[m][v]);
      } else if (left > 0) {
        store_first(out, load_first(out, static_cast<int>(left)) + sums[m][v], static_cast<int>(left));
      }
    }
  }
}

// Calls run.operator()<rows>(first) for groups of rows, as even as they can be, and at most kRowGroup each.
template <int kRows = kRowGroup, class Run>
void run_group(int64_t rows, int64_t first, const Run& run) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return run_group<kRows - 1>(rows, first, run);
  }
  run.template operator()<kRows>(first);
}
template <class Run>
void for_each_group(int64_t rows, const Run& run) {
  const int64_t groups = (rows + kRowGroup - 1) / kRowGroup;
  for (int64_t group = 0; group < groups; ++group) {
    const int64_t first = group * rows / groups;
    run_group((group + 1) * rows / groups - first, first, run);
  }
}

// One call of the op: its tiles of rows, and `low` for all rows that adapters have, the parts side by side.
class Call {
 public:
  Call(const AddLoraParams& params, const std::vector<Tile>& tiles, int64_t max_rank, float* low)
      : params_(params), tiles_(tiles), max_rank_(max_rank), low_(low) {}

  // Items are tiles, or pieces of them; every thread that shrinks has done so before one expands.
  void run_whole_tiles() const {
    parallel_items(static_cast<int64_t>(tiles_.size()), [&](int64_t item) {
      for (int32_t part = 0; part < params_.num_parts; ++part) shrink(tiles_[item], part, 0, kMaxLoraRank);
      for (int32_t part = 0; part < params_.num_parts; ++part) expand(tiles_[item], part, 0, params_.num_outputs);
    });
  }
  void run_pieces() const {
    run_pieces_of(max_rank_, kPieceRanks, [&](const Tile& tile, int32_t part, int64_t first) {
      shrink(tile, part, first, first + kPieceRanks);
    });
    run_pieces_of(params_.num_outputs, kPieceOutputs, [&](const Tile& tile, int32_t part, int64_t first) {
      expand(tile, part, first, first + kPieceOutputs);
    });
  }

 private:
  template <class Run>
  void run_pieces_of(int64_t size, int64_t piece, const Run& run) const {
    const int64_t pieces = (size + piece - 1) / piece;
    parallel_items(static_cast<int64_t>(tiles_.size()) * params_.num_parts * pieces, [&](int64_t item) {
      const int64_t tile_and_part = item / pieces;
      run(tiles_[tile_and_part / params_.num_parts], static_cast<int32_t>(tile_and_part % params_.num_parts),
          item % pieces * piece);
    });
  }

  const LoraPart& part_of(const Tile& tile, int32_t part) const {
    return params_.parts[int64_t{tile.adapter} * params_.num_parts + part];
  }
  float scale_of(const Tile& tile, int32_t part) const {
    return params_.scales[int64_t{tile.adapter} * params_.num_parts + part];
  }
  int64_t low_stride() const { return params_.num_parts * max_rank_; }
  float* low_of(const Tile& tile, int32_t part) const { return low_ + tile.first * low_stride() + part * max_rank_; }

  // Calls body with a value of the element type of x and out, and one of that of a and b.
  template <class Body>
  void with_types(const LoraPart& part, const Body& body) const {
    with_element_types(params_.dtype, static_cast<DType>(part.dtype), body);
  }

  // The ranks first .. last - 1 of those that the part has.
  void shrink(const Tile& tile, int32_t number, int64_t first, int64_t last) const {
    const LoraPart& part = part_of(tile, number);
    last = std::min(last, part.rank);
    const int32_t* row_ids = params_.row_ids + tile.first;
    float* low = low_of(tile, number);
    with_types(part, [&](auto t, auto weight) {
      using Weight = decltype(weight);
      for (int64_t rank = first; rank < last; rank += kRanks) {
        const Weight* a = reinterpret_cast<const Weight*>(part.a) + rank * params_.num_inputs;
        const int count = static_cast<int>(std::min<int64_t>(kRanks, last - rank));
        for_each_group(tile.last - tile.first, [&]<int kRows>(int64_t row) {
          shrink_rows<kRows, decltype(t)>(params_, row_ids + row, a, count, scale_of(tile, number),
                                          low + row * low_stride() + rank, low_stride());
        });
      }
    });
  }

  // The outputs first .. last - 1 of those that the part has.
  void expand(const Tile& tile, int32_t number, int64_t first, int64_t last) const {
    const LoraPart& part = part_of(tile, number);
    if (part.rank == 0) return;
    last = std::min(last, part.num_outputs);
    const int32_t* row_ids = params_.row_ids + tile.first;
    const float* low = low_of(tile, number);
    with_types(part, [&](auto t, auto weight) {
      using Weight = decltype(weight);
      for (int64_t output = first; output < last; output += kVectors * Vec::kWidth) {
        const Weight* b =
            reinterpret_cast<const Weight*>(part.b) + output / kLoraTile * kLoraTile * part.rank + output % kLoraTile;
        for_each_group(tile.last - tile.first, [&]<int kRows>(int64_t row) {
          expand_rows<kRows, decltype(t)>(params_, row_ids + row, b, part.rank, low + row * low_stride(), low_stride(),
                                          part.first_output + output, last - output);
        });
      }
    });
  }

  const AddLoraParams& params_;
  const std::vector<Tile>& tiles_;
  int64_t max_rank_;
  float* low_;
};

}  // namespace

void add_lora(const AddLoraParams& params) {
  check_values(params);
  thread_local std::vector<Tile> tiles;
  thread_local std::vector<float> low;
  tiles.clear();
  int64_t max_rank = 0;
  for (int32_t adapter = 0; adapter < params.num_adapters; ++adapter) {
    const int32_t last = params.row_starts[adapter + 1];
    if (params.row_starts[adapter] == last) continue;
    for (int32_t part = 0; part < params.num_parts; ++part) {
      max_rank = std::max(max_rank, params.parts[int64_t{adapter} * params.num_parts + part].rank);
    }
    for (int32_t first = params.row_starts[adapter]; first < last; first += kTileRows) {
      tiles.push_back({adapter, first, std::min(last, first + kTileRows)});
    }
  }
  if (max_rank == 0) return;
  low.resize(std::max(low.size(), static_cast<size_t>(params.num_row_ids * params.num_parts * max_rank)));
  const Call call(params, tiles, max_rank, low.data());
  if (static_cast<int64_t>(tiles.size()) < num_threads()) {
    call.run_pieces();
  } else {
    call.run_whole_tiles();
  }
}

}  // namespace cudaprefill::cpu::CUDAPREFILL_ISA
