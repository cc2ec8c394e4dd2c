// Rows of activations as whole numbers of one or two digits (8 or 16 bits). For each part of 32:
//
//   scale = largest |x| / kLargest, q = x kLargest / largest, rounded to even
//
// One digit: kLargest is 127. Two: 127 * 255, and q = 255 high + low, each from -127 to 127.
//
// A part that holds an infinity or a NaN gets the scale NaN, and with it all that is made of its row.
#pragma once

#include <cstdint>
#include <memory>

#include "csrc/cpu/block_groups.h"
#include "csrc/cpu/parallel.h"

namespace cudaprefill::cpu::CUDAPREFILL_ISA {

// A part whose largest is below counts as zeros: kLargest / largest has to be finite.
constexpr float kLeastLargest = 0x1p-100f;

// One row, and of each part what is the same for all outputs.
struct QuantisedRow {
  int8_t* digits;    // [num_parts, kDigits, 32], the high ones first
  float* scales;     // [num_parts]
  float* sums;       // [num_parts], of scale q: for formats with a minimum
  int32_t* offsets;  // [num_parts, kScalesOfPart], minus the sums of offset q: for formats with an offset
};

// What multiply_add multiplies by beyond q, which `offsets` makes good.
template <class Format>
constexpr int kOperandOffset = Format::kOffset + (Format::kSigned ? kOffsetOfSigned : 0);

template <class Format, int kDigits>
CUDAPREFILL_INLINE void quantise_part(const float* x, const QuantisedRow& row, int64_t part) {
  constexpr int kVectors = kPartElements / Vec::kWidth;
  constexpr float kLargest = kDigits == 1 ? 127.0f : 127.0f * 255.0f;
  Vec values[kVectors];
  Vec largest_of_lanes = zero(), poison_of_lanes = zero();
#pragma GCC unroll 8
  for (int i = 0; i < kVectors; ++i) {
    values[i] = load(x + i * Vec::kWidth);
    largest_of_lanes = max(max(values[i], zero() - values[i]), largest_of_lanes);
    poison_of_lanes = fma(values[i], zero(), poison_of_lanes);
  }
  const float most = largest(largest_of_lanes), poison = sum(poison_of_lanes);
  const bool as_zeros = !(most >= kLeastLargest) || poison != 0.0f;
  const Vec inverse = broadcast(kLargest / most);
  Vec sums[Format::kScalesOfPart];
#pragma GCC unroll 2
  for (int s = 0; s < Format::kScalesOfPart; ++s) sums[s] = zero();
#pragma GCC unroll 8
  for (int i = 0; i < kVectors; ++i) {
    const Vec q = as_zeros ? zero() : round(values[i] * inverse);
    int8_t* digits = row.digits + part * kDigits * kPartElements + i * Vec::kWidth;
    if constexpr (kDigits == 2) {
      const Vec high = round(q * broadcast(1.0f / 255.0f));
      store_as_bytes(digits, high);
      store_as_bytes(digits + kPartElements, fma(broadcast(-255.0f), high, q));
    } else {
      store_as_bytes(digits, q);
    }
    sums[i * Format::kScalesOfPart / kVectors] = sums[i * Format::kScalesOfPart / kVectors] + q;
  }
  row.scales[part] = as_zeros ? poison : most / kLargest;
  if constexpr (Format::kHasMinimum) row.sums[part] = row.scales[part] * sum(sums[0]);
  if constexpr (kOperandOffset<Format> != 0) {
#pragma GCC unroll 2
    for (int s = 0; s < Format::kScalesOfPart; ++s) {
      row.offsets[part * Format::kScalesOfPart + s] = -kOperandOffset<Format> * static_cast<int32_t>(sum(sums[s]));
    }
  }
}

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
template <class Format, int kDigits>
class QuantisedRows {
 public:
  QuantisedRows(int64_t num_rows, int64_t num_inputs)
      : num_parts_(num_inputs / kPartElements), row_bytes_(size_of_row(num_inputs)) {
    data_ = scratch_lines(num_rows * row_bytes_ / 64);
  }

  CUDAPREFILL_INLINE QuantisedRow operator[](int64_t row) const {
    uint8_t* data = data_ + row * row_bytes_;
    auto* scales = reinterpret_cast<float*>(data + num_parts_ * kDigits * kPartElements);
    auto* offsets = reinterpret_cast<int32_t*>(scales + num_parts_);
    return {reinterpret_cast<int8_t*>(data), scales, scales + num_parts_, offsets};
  }

  void fill(int64_t row, const float* x) const {
    for (int64_t part = 0; part < num_parts_; ++part) {
      quantise_part<Format, kDigits>(x + part * kPartElements, (*this)[row], part);
    }
  }

 private:
  static int64_t size_of_row(int64_t num_inputs) {  // a format has a minimum or an offset, never both
    const int64_t numbers = num_inputs / kPartElements * (1 + Format::kScalesOfPart);
    return (num_inputs * kDigits + numbers * 4 + 63) / 64 * 64;
  }

  int64_t num_parts_, row_bytes_;
  uint8_t* data_;
};

}  // namespace cudaprefill::cpu::CUDAPREFILL_ISA
