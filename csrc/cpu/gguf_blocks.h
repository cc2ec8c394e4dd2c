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
// A format is a struct with `quants(block, part, q)`, the 32 numbers q of one part. Each block is read once, when a
// model is loaded, so this is written to be read.
#pragma once

#include <cstdint>

#include "csrc/cpu/float_types.h"

namespace cudaprefill::cpu::gguf {

constexpr int kPartElements = 32;

struct Q4_0 {
  static void quants(const uint8_t* block, int, uint8_t (&q)[kPartElements]) {
    for (int i = 0; i < 16; ++i) {
      q[i] = block[2 + i] & 15;
      q[16 + i] = block[2 + i] >> 4;
    }
  }
};

struct Q4_1 {
  static void quants(const uint8_t* block, int part, uint8_t (&q)[kPartElements]) { Q4_0::quants(block + 2, part, q); }
};

// Two's complement.
struct Q8_0 {
  static void quants(const uint8_t* block, int, uint8_t (&q)[kPartElements]) {
    for (int i = 0; i < kPartElements; ++i) q[i] = block[2 + i];
  }
};

struct Q4_K {
  static void quants(const uint8_t* block, int part, uint8_t (&q)[kPartElements]) {
    const uint8_t* bytes = block + 16 + part / 2 * kPartElements;
    for (int i = 0; i < kPartElements; ++i) q[i] = part % 2 == 0 ? bytes[i] & 15 : bytes[i] >> 4;
  }

  // Six bits each: parts 0 to 3 in the low bits of the first eight bytes, whose two high bits complete the nibbles that
  // the last four bytes hold for parts 4 to 7.
  static uint8_t scale(const uint8_t* block, int part) {
    const uint8_t* packed = block + 4;
    return part < 4 ? packed[part] & 63 : (packed[part + 4] & 15) | (packed[part - 4] >> 6) << 4;
  }
  static uint8_t minimum(const uint8_t* block, int part) {
    const uint8_t* packed = block + 4;
    return part < 4 ? packed[part + 4] & 63 : packed[part + 4] >> 4 | (packed[part] >> 6) << 4;
  }
};

struct Q6_K {
  static void quants(const uint8_t* block, int part, uint8_t (&q)[kPartElements]) {
    // Half a block is 64 bytes of low nibbles, for parts 0 and 1, then 2 and 3, and 32 bytes of two high bits a part.
    const int half = part / 4, quarter = part % 4;
    const uint8_t* low = block + half * 64 + quarter % 2 * kPartElements;
    const uint8_t* high = block + 128 + half * kPartElements;
    const int low_shift = quarter / 2 * 4, high_shift = quarter * 2;
    for (int i = 0; i < kPartElements; ++i) {
      q[i] = static_cast<uint8_t>((low[i] >> low_shift & 15) | (high[i] >> high_shift & 3) << 4);
    }
  }
};

}  // namespace cudaprefill::cpu::gguf
