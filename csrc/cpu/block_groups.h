// Weights in groups: the GGUF blocks of 16 rows (gguf_blocks.h), element by element side by side, so that one vector
// holds the same four elements of as many rows as it has lanes of 32 bits:
//
//   group = scales of all parts | values of all parts
//
//            scales                                          values of a part, in steps of four elements
//   Q4_0     d f16[16]                    for each part      nibbles
//   Q4_1     d f16[16], m f16[16]         for each part      nibbles
//   Q8_0     d f16[16]                    for each part      8 steps of 16 x 4 signed bytes
//   Q4_K     d f16[16], m f16[16],        for each 8 parts   nibbles
//            s u8[8][16], t u8[8][16]
//   Q6_K     d f16[16], s i8[16][16]      for each 8 parts   nibbles; after those of all parts, 2 x 16 x 4 bytes a part
//                                                            of high bits: steps 4 h .. 4 h + 3 in byte row h
//
//   nibbles  4 x 16 x 4 bytes: steps 0 to 3 in the low halves, 4 to 7 in the high ones
//
//            row 0          row 1               row 15
//   step 0   | e0 e1 e2 e3 | e0 e1 e2 e3 | ... | e0 e1 e2 e3 |     one vector of AVX-512, two of AVX2, four of the
//   plain step 1   | e4 e5 e6 e7 | e4 e5 ...                             level: a `Column` is the part of the group
//   that
//                                                                  belongs to the rows of one vector
//
// A format is a struct with
//   kSigned         its bytes are signed
//   kOffset         what is subtracted from each q
//   kScalesOfPart   scales in 32 elements
//   kHasMinimum     w = scale q + minimum, else w = scale (q - kOffset)
//   bytes(column, part, step), scale(column, part, number), minimum(column, part)
#pragma once

#include "csrc/cpu/byte_vectors.h"
#include "csrc/cpu/simd.h"

namespace cudaprefill::cpu::CUDAPREFILL_ISA {

constexpr int kPartElements = 32;
constexpr int kSteps = kPartElements / 4;
constexpr int kColumnsOfGroup = static_cast<int>(kGroupRows) / Vec::kWidth;
constexpr int64_t kRowOfHalves = kGroupRows * 2, kRowOfBytes = kGroupRows, kRowOfWords = kGroupRows * 4;  // bytes

struct Column {
  const uint8_t* scales;
  const uint8_t* values;
  int64_t num_parts;
  int lane;  // of the group, that is the column's first

  Vec halves(const uint8_t* row) const { return load(reinterpret_cast<const Float16*>(row) + lane); }
  Vec signed_bytes(const uint8_t* row) const { return load_signed_bytes(reinterpret_cast<const int8_t*>(row) + lane); }
  Bytes words(const uint8_t* row) const { return load_bytes(row + 4 * lane); }

  CUDAPREFILL_INLINE Bytes nibbles(int64_t part, int step) const {
    const Bytes both = words(values + (part * 4 + step % 4) * kRowOfWords);
    return step < 4 ? low_nibbles(both) : high_nibbles(both);
  }
};

struct Q4_0 {
  static constexpr BlockFormat kFormat = BlockFormat::kQ4_0;
  static constexpr bool kSigned = false, kHasMinimum = false;
  static constexpr int kOffset = 8, kScalesOfPart = 1, kPartsOfBlock = 1;
  static constexpr int64_t kScaleBytes = kRowOfHalves;  // of the parts of a block

  CUDAPREFILL_INLINE static Bytes bytes(const Column& column, int64_t part, int step) {
    return column.nibbles(part, step);
  }
  CUDAPREFILL_INLINE static Vec scale(const Column& column, int64_t part, int) {
    return column.halves(column.scales + part * kScaleBytes);
  }
};

struct Q4_1 {
  static constexpr BlockFormat kFormat = BlockFormat::kQ4_1;
  static constexpr bool kSigned = false, kHasMinimum = true;
  static constexpr int kOffset = 0, kScalesOfPart = 1, kPartsOfBlock = 1;
  static constexpr int64_t kScaleBytes = 2 * kRowOfHalves;

  CUDAPREFILL_INLINE static Bytes bytes(const Column& column, int64_t part, int step) {
    return column.nibbles(part, step);
  }
  CUDAPREFILL_INLINE static Vec scale(const Column& column, int64_t part, int) {
    return column.halves(column.scales + part * kScaleBytes);
  }
  CUDAPREFILL_INLINE static Vec minimum(const Column& column, int64_t part) {
    return column.halves(column.scales + part * kScaleBytes + kRowOfHalves);
  }
};

struct Q8_0 {
  static constexpr BlockFormat kFormat = BlockFormat::kQ8_0;
  static constexpr bool kSigned = true, kHasMinimum = false;
  static constexpr int kOffset = 0, kScalesOfPart = 1, kPartsOfBlock = 1;
  static constexpr int64_t kScaleBytes = kRowOfHalves;

  CUDAPREFILL_INLINE static Bytes bytes(const Column& column, int64_t part, int step) {
    return column.words(column.values + (part * kSteps + step) * kRowOfWords);
  }
  CUDAPREFILL_INLINE static Vec scale(const Column& column, int64_t part, int) {
    return column.halves(column.scales + part * kScaleBytes);
  }
};

struct Q4_K {
  static constexpr BlockFormat kFormat = BlockFormat::kQ4_K;
  static constexpr bool kSigned = false, kHasMinimum = true;
  static constexpr int kOffset = 0, kScalesOfPart = 1, kPartsOfBlock = 8;
  static constexpr int64_t kScaleBytes = 2 * kRowOfHalves + 2 * kPartsOfBlock * kRowOfBytes;

  CUDAPREFILL_INLINE static Bytes bytes(const Column& column, int64_t part, int step) {
    return column.nibbles(part, step);
  }
  CUDAPREFILL_INLINE static Vec scale(const Column& column, int64_t part, int) {
    const uint8_t* block = column.scales + part / kPartsOfBlock * kScaleBytes;
    const uint8_t* bytes = block + 2 * kRowOfHalves + part % kPartsOfBlock * kRowOfBytes;
    return column.halves(block) * column.signed_bytes(bytes);
  }
  CUDAPREFILL_INLINE static Vec minimum(const Column& column, int64_t part) {
    const uint8_t* block = column.scales + part / kPartsOfBlock * kScaleBytes;
    const uint8_t* bytes = block + 2 * kRowOfHalves + (kPartsOfBlock + part % kPartsOfBlock) * kRowOfBytes;
    return zero() - column.halves(block + kRowOfHalves) * column.signed_bytes(bytes);
  }
};

struct Q6_K {
  static constexpr BlockFormat kFormat = BlockFormat::kQ6_K;
  static constexpr bool kSigned = false, kHasMinimum = false;
  static constexpr int kOffset = 32, kScalesOfPart = 2, kPartsOfBlock = 8;
  static constexpr int64_t kScaleBytes = kRowOfHalves + kPartsOfBlock * kScalesOfPart * kRowOfBytes;

  CUDAPREFILL_INLINE static Bytes bytes(const Column& column, int64_t part, int step) {
    const uint8_t* high = column.values + (column.num_parts * 4 + part * 2 + step / 4) * kRowOfWords;
    return with_high_bits(column.nibbles(part, step), column.words(high), step % 4);
  }
  CUDAPREFILL_INLINE static Vec scale(const Column& column, int64_t part, int number) {
    const uint8_t* block = column.scales + part / kPartsOfBlock * kScaleBytes;
    const uint8_t* bytes = block + kRowOfHalves + (part % kPartsOfBlock * kScalesOfPart + number) * kRowOfBytes;
    return column.halves(block) * column.signed_bytes(bytes);
  }
};

// Column `number` of a matrix whose rows have `num_parts` parts.
template <class Format>
CUDAPREFILL_INLINE Column column_at(const uint8_t* groups, int64_t group_stride, int64_t number, int64_t num_parts) {
  const uint8_t* group = groups + number / kColumnsOfGroup * group_stride;
  return {.scales = group,
          .values = group + num_parts / Format::kPartsOfBlock * Format::kScaleBytes,
          .num_parts = num_parts,
          .lane = static_cast<int>(number % kColumnsOfGroup) * Vec::kWidth};
}

// Calls each(element, values) for the elements 0 to 31 of a part, in order: their weights as floats, one row a lane.
template <class Format, class Each>
CUDAPREFILL_INLINE void for_each_element(const Column& column, int64_t part, const Each& each) {
  Vec scale, minimum;
  if constexpr (Format::kHasMinimum) minimum = Format::minimum(column, part);
#pragma GCC unroll 8
  for (int step = 0; step < kSteps; ++step) {
    if (step % (kSteps / Format::kScalesOfPart) == 0) {
      scale = Format::scale(column, part, step / (kSteps / Format::kScalesOfPart));
      if constexpr (Format::kOffset != 0) minimum = broadcast(static_cast<float>(-Format::kOffset)) * scale;
    }
    const Bytes bytes = Format::bytes(column, part, step);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const Vec q = Format::kSigned ? signed_byte(bytes, i) : unsigned_byte(bytes, i);
      if constexpr (Format::kHasMinimum || Format::kOffset != 0) {
        each(4 * step + i, fma(q, scale, minimum));
      } else {
        each(4 * step + i, q * scale);
      }
    }
  }
}

// Calls body(Format{}) with a format's struct.
template <class Body>
CUDAPREFILL_INLINE void with_block_format(BlockFormat format, const Body& body) {
  switch (format) {
    case BlockFormat::kQ4_0:
      return body(Q4_0{});
    case BlockFormat::kQ4_1:
      return body(Q4_1{});
    case BlockFormat::kQ8_0:
      return body(Q8_0{});
    case BlockFormat::kQ4_K:
      return body(Q4_K{});
    case BlockFormat::kQ6_K:
      return body(Q6_K{});
    case BlockFormat::kNone:
      return;
  }
}

}  // namespace cudaprefill::cpu::CUDAPREFILL_ISA
