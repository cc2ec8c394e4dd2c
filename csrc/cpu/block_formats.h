// Weights in the blocks of GGUF files (github.com/ggml-org/ggml), each made of parts of 32 elements of a row:
//
//   Q4_0   d f16 | 16 bytes                              w = d (q - 8)
//   Q4_1   d f16 | m f16 | 16 bytes                      w = d q + m
//   Q8_0   d f16 | 32 signed bytes                       w = d q
//   Q4_K   d f16 | m f16 | 12 bytes | 128 bytes          8 parts, w = d s q - m t; s and t of 6 bits for each part
//   Q6_K   128 bytes | 64 bytes | 16 signed bytes | d f16    8 parts, w = d s (q - 32); s for every 16 elements
//
// A byte of nibbles holds two elements 16 apart (Q4_0, Q4_1) or 32 apart (Q4_K: two neighbouring parts).
//
// A format is a struct with kFormat and `decode(block, part, out)`: the 32 values of one part as vectors.
#pragma once

#include <cstring>

#include "csrc/cpu/simd.h"

namespace cudaprefill::cpu::CUDAPREFILL_ISA {

constexpr int kPartElements = 32;
constexpr int kPartVectors = kPartElements / Vec::kWidth;

CUDAPREFILL_INLINE Vec half_at(const uint8_t* at) {
  Float16 half;
  std::memcpy(&half, at, sizeof(half));
  return broadcast(half);
}

// The first half of the vectors are the low nibbles of 16 bytes, the second half the high ones.
CUDAPREFILL_INLINE void decode_nibbles(const uint8_t* bytes, const NibbleValues& values, Vec (&out)[kPartVectors]) {
#pragma GCC unroll 4
  for (int i = 0; i < kPartVectors / 2; ++i) {
    out[i] = values.low(bytes + i * Vec::kWidth);
    out[kPartVectors / 2 + i] = values.high(bytes + i * Vec::kWidth);
  }
}

struct Q4_0 {
  static constexpr BlockFormat kFormat = BlockFormat::kQ4_0;
  CUDAPREFILL_INLINE static void decode(const uint8_t* block, int, Vec (&out)[kPartVectors]) {
    const Vec scale = half_at(block);
    decode_nibbles(block + 2, NibbleValues(scale, broadcast(-8.0f) * scale), out);
  }
};

struct Q4_1 {
  static constexpr BlockFormat kFormat = BlockFormat::kQ4_1;
  CUDAPREFILL_INLINE static void decode(const uint8_t* block, int, Vec (&out)[kPartVectors]) {
    decode_nibbles(block + 4, NibbleValues(half_at(block), half_at(block + 2)), out);
  }
};

struct Q8_0 {
  static constexpr BlockFormat kFormat = BlockFormat::kQ8_0;
  CUDAPREFILL_INLINE static void decode(const uint8_t* block, int, Vec (&out)[kPartVectors]) {
    const Vec scale = half_at(block);
#pragma GCC unroll 8
    for (int i = 0; i < kPartVectors; ++i) {
      out[i] = load_signed_bytes(reinterpret_cast<const int8_t*>(block + 2) + i * Vec::kWidth) * scale;
    }
  }
};

struct Q4_K {
  static constexpr BlockFormat kFormat = BlockFormat::kQ4_K;
  CUDAPREFILL_INLINE static void decode(const uint8_t* block, int part, Vec (&out)[kPartVectors]) {
    // Six bits each: parts 0 to 3 in the low bits of the first eight bytes, whose two high bits complete the nibbles
    // that the last four bytes hold for parts 4 to 7.
    const uint8_t* packed = block + 4;
    const int s = part < 4 ? packed[part] & 63 : (packed[part + 4] & 15) | (packed[part - 4] >> 6) << 4;
    const int t = part < 4 ? packed[part + 4] & 63 : packed[part + 4] >> 4 | (packed[part] >> 6) << 4;
    const NibbleValues values(half_at(block) * broadcast(static_cast<float>(s)),
                              half_at(block + 2) * broadcast(-static_cast<float>(t)));
    const uint8_t* bytes = block + 16 + part / 2 * kPartElements;
#pragma GCC unroll 8
    for (int i = 0; i < kPartVectors; ++i) {
      out[i] = part % 2 == 0 ? values.low(bytes + i * Vec::kWidth) : values.high(bytes + i * Vec::kWidth);
    }
  }
};

struct Q6_K {
  static constexpr BlockFormat kFormat = BlockFormat::kQ6_K;
  CUDAPREFILL_INLINE static void decode(const uint8_t* block, int part, Vec (&out)[kPartVectors]) {
    // Half a block is 64 bytes of low nibbles, for parts 0 and 1, then 2 and 3, and 32 bytes of two high bits a part.
    const int half = part / 4, quarter = part % 4;
    const uint8_t* low = block + half * 64 + quarter % 2 * kPartElements;
    const uint8_t* high = block + 128 + half * kPartElements;
    const int low_shift = quarter / 2 * 4, high_shift = quarter * 2;
    int8_t values[kPartElements];
    for (int i = 0; i < kPartElements; ++i) {
      values[i] = static_cast<int8_t>(((low[i] >> low_shift & 15) | (high[i] >> high_shift & 3) << 4) - 32);
    }
    const int8_t* scales = reinterpret_cast<const int8_t*>(block + 192) + part * 2;
    const Vec scale = half_at(block + 208);
#pragma GCC unroll 8
    for (int i = 0; i < kPartVectors; ++i) {
      const int first = i * Vec::kWidth;
      out[i] = load_signed_bytes(values + first) * (scale * broadcast(static_cast<float>(scales[first / 16])));
    }
  }
};

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

// Calls part(values, k) for each 32 elements from `first` to `last` of a row of blocks, both multiples of 32.
template <class Format, class Part>
CUDAPREFILL_INLINE void for_each_part(const uint8_t* row, int64_t first, int64_t last, const Part& part) {
  constexpr BlockShape kShape = block_shape(Format::kFormat);
  for (int64_t k = first; k < last; k += kPartElements) {
    Vec values[kPartVectors];
    Format::decode(row + k / kShape.elements * kShape.bytes, static_cast<int>(k % kShape.elements / kPartElements),
                   values);
    part(values, k);
  }
}

// The elements `first` to `last` of a row as floats.
template <class Format>
CUDAPREFILL_INLINE void decode_row(const uint8_t* row, int64_t first, int64_t last, float* out) {
  for_each_part<Format>(row, first, last, [&](const Vec(&values)[kPartVectors], int64_t k) {
#pragma GCC unroll 8
    for (int i = 0; i < kPartVectors; ++i) store(out + k - first + i * Vec::kWidth, values[i]);
  });
}

}  // namespace cudaprefill::cpu::CUDAPREFILL_ISA
