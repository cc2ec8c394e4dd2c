// Rows of activations as whole numbers of 8 or 16 bits, of the type `Quant`. For each part of 32:
//
//   scale = largest |x| / kLargest, q = x kLargest / largest, rounded to even
//
// kLargest is the largest number of the type.
//
// A part that holds an infinity or a NaN gets the scale NaN, and with it all that is made of its row: infinity times an
// inverse of 0, or NaN times any, makes its sum NaN.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>

#include "csrc/cpu/block_groups.h"
#include "csrc/cpu/parallel.h"

namespace cudaprefill::cpu::CUDAPREFILL_ISA {

// A part whose largest is below counts as zeros: kLargest / largest has to be finite.
constexpr float kLeastLargest = 0x1p-100f;

// One row, and of each part what is the same for all outputs.
template <class Quant>
struct QuantisedRow {
  Quant* quants;     // [num_parts, 32], words in the order of store_part
  float* scales;     // [num_parts]
  float* sums;       // [num_parts], of scale q: for formats with a minimum
  int32_t* offsets;  // [num_parts, kScalesOfPart], minus the sums of offset q: for formats with an offset
};

// What multiply_add multiplies by beyond q, which `offsets` makes good.
template <class Format, class Quant>
constexpr int kOperandOffset = Format::kOffset + (Format::kSigned && sizeof(Quant) == 1 ? kOffsetOfSigned : 0);

// Rounds a row of `num_parts` parts, four at a time so that sums over lanes are made of four vectors at once.
template <class Format, class Quant>
class RowQuantiser {
 public:
  RowQuantiser(const float* x, int64_t num_parts, const QuantisedRow<Quant>& row)
      : x_(x), num_parts_(num_parts), row_(row) {}

  void run() const {
    for (int64_t first = 0; first < num_parts_; first += kParts) {
      const int64_t count = std::min(kParts, num_parts_ - first);
      alignas(64) float inverses[kParts];
      find_scales(first, count, inverses);
      for (int64_t i = 0; i < count; i += kFour) write_four(first + i, inverses + i);
    }
  }

 private:
  static constexpr int64_t kParts = 64, kFour = 4;
  static constexpr int kVectors = kPartElements / Vec::kWidth;
  static constexpr float kLargest = std::numeric_limits<Quant>::max();

  // The last part stands in for those past the end.
  int64_t existing(int64_t part) const { return std::min(part, num_parts_ - 1); }

  // inverses = kLargest / largest, or 0; row.scales = largest / kLargest, or 0
  void find_scales(int64_t first, int64_t count, float* inverses) const {
    for (int64_t i = 0; i < count; i += kFour) {
      Vec most[kFour];
#pragma GCC unroll 4
      for (int64_t p = 0; p < kFour; ++p) {
        const float* values = x_ + existing(first + i + p) * kPartElements;
        most[p] = zero();
#pragma GCC unroll 8
        for (int v = 0; v < kVectors; ++v) {
          const Vec value = load(values + v * Vec::kWidth);
          most[p] = max(max(value, zero() - value), most[p]);
        }
      }
      store_largest(inverses + i, most[0], most[1], most[2], most[3]);
    }
    const auto scale_of = [](Vec most) {
      return zero_below(most, broadcast(kLeastLargest), most / broadcast(kLargest));
    };
    const auto inverse_of = [](Vec most) {
      return zero_below(most, broadcast(kLeastLargest), broadcast(kLargest) / most);
    };
    for_each_vector(
        count,
        [&](int64_t i) {
          const Vec most = load(inverses + i);
          store(row_.scales + first + i, scale_of(most));
          store(inverses + i, inverse_of(most));
        },
        [&](int64_t i, int rest) {
          const Vec most = load_first(inverses + i, rest);
          store_first(row_.scales + first + i, scale_of(most), rest);
          store_first(inverses + i, inverse_of(most), rest);
        });
  }

  void write_four(int64_t first, const float* inverses) const {
    constexpr int kScales = Format::kScalesOfPart;
    const int64_t count = std::min(kFour, num_parts_ - first);
    Vec sums[kScales][kFour];
#pragma GCC unroll 4
    for (int64_t p = 0; p < kFour; ++p) {
#pragma GCC unroll 2
      for (int s = 0; s < kScales; ++s) sums[s][p] = zero();
      if (p >= count) continue;
      const float* values = x_ + (first + p) * kPartElements;
      Vec q[kVectors];
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) {
        q[v] = round(load(values + v * Vec::kWidth) * broadcast(inverses[p]));
        sums[v * kScales / kVectors][p] = sums[v * kScales / kVectors][p] + q[v];
      }
      store_part(row_.quants + (first + p) * kPartElements, q);
    }
    float of_parts[kScales][kFour];
#pragma GCC unroll 2
    for (int s = 0; s < kScales; ++s) store_sums(of_parts[s], sums[s][0], sums[s][1], sums[s][2], sums[s][3]);
    for (int64_t p = 0; p < count; ++p) {
      float sum = of_parts[0][p];
      if constexpr (kScales == 2) sum += of_parts[1][p];
      float& scale = row_.scales[first + p];
      if (sum != sum) scale = sum;
      if constexpr (Format::kHasMinimum) row_.sums[first + p] = scale * sum;
      if constexpr (kOperandOffset<Format, Quant> != 0) {
        for (int s = 0; s < kScales; ++s) {
          const int32_t whole = sum != sum ? 0 : static_cast<int32_t>(of_parts[s][p]);
          row_.offsets[(first + p) * kScales + s] = -kOperandOffset<Format, Quant> * whole;
        }
      }
    }
  }

  const float* x_;
  int64_t num_parts_;
  QuantisedRow<Quant> row_;
};

// Room for `count` lines of 64 bytes, until the same thread wants some again. The most that it has wanted is kept.
inline uint8_t* scratch_lines(int64_t count) {
  struct alignas(64) Line {
    uint8_t bytes[64];
  };
  thread_local std::unique_ptr<Line[]> lines;
  thread_local int64_t size = 0;
  if (count > size) {
    lines.reset();
    lines.reset(new Line[count]);
    size = count;
  }
  return reinterpret_cast<uint8_t*>(lines.get());
}

// Rows in such room.
template <class Format, class Quant>
class QuantisedRows {
 public:
  QuantisedRows(int64_t num_rows, int64_t num_inputs)
      : num_parts_(num_inputs / kPartElements), row_bytes_(size_of_row(num_inputs)) {
    data_ = scratch_lines(num_rows * row_bytes_ / 64);
  }

  CUDAPREFILL_INLINE QuantisedRow<Quant> operator[](int64_t row) const {
    uint8_t* data = data_ + row * row_bytes_;
    auto* scales = reinterpret_cast<float*>(data + num_parts_ * kPartElements * sizeof(Quant));
    auto* offsets = reinterpret_cast<int32_t*>(scales + num_parts_);
    return {reinterpret_cast<Quant*>(data), scales, scales + num_parts_, offsets};
  }

  // Rounds x [num_inputs] into a row.
  void fill(int64_t row, const float* x) const { RowQuantiser<Format, Quant>(x, num_parts_, (*this)[row]).run(); }

 private:
  static int64_t size_of_row(int64_t num_inputs) {  // a format has a minimum or an offset, never both
    const int64_t numbers = num_inputs / kPartElements * (1 + Format::kScalesOfPart);
    return (num_inputs * static_cast<int64_t>(sizeof(Quant)) + numbers * 4 + 63) / 64 * 64;
  }

  int64_t num_parts_, row_bytes_;
  uint8_t* data_;
};

}  // namespace cudaprefill::cpu::CUDAPREFILL_ISA
