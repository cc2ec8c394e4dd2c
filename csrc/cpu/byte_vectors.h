// Vectors of bytes, four in each 32-bit lane, and sums of their products, with as many lanes as a Vec:
//
//   Bytes                     load_bytes(p); broadcast_bytes(p): the same four in all lanes
//   low_nibbles(b), high_nibbles(b)      of each byte
//   with_high_bits(b, h, n)   b plus the n-th two bits of each byte of h, 16 times as large
//   signed_byte(b, i), unsigned_byte(b, i)   byte i of each lane as a float
//   store_as_bytes(p, v)      the lanes of a Vec, whole numbers from -127 to 127, as kWidth signed bytes
//   Ints                      broadcast_int(v), to_float(v), times_255_plus(a, b)
//   multiply_add(sums, w, x)  sums plus, in each lane, the four products of w and x. x is signed, from -127 to 127;
//                             w is from 0 to 63, or with multiply_add_signed signed. Exact: nothing saturates.
//   kOffsetOfSigned           multiply_add_signed gives the sums for w + kOffsetOfSigned instead of w. Where that is
//                             not 0, w has to come from `with_offset`, and who adds subtracts it again.
#pragma once

#include <cstring>

#include "csrc/cpu/simd.h"

namespace cudaprefill::cpu::CUDAPREFILL_ISA {

#if CUDAPREFILL_ISA_AVX512

struct Bytes {
  __m512i lanes;
};
struct Ints {
  __m512i lanes;
};

// The intrinsics take counts that are constants for the parser, not those of unrolled loops.
CUDAPREFILL_INLINE __m512i shifted_right(__m512i lanes, int bits) {
  return reinterpret_cast<__m512i>(reinterpret_cast<__v16su>(lanes) >> bits);
}
CUDAPREFILL_INLINE __m512i shifted_left(__m512i lanes, int bits) {
  return reinterpret_cast<__m512i>(reinterpret_cast<__v16su>(lanes) << bits);
}
CUDAPREFILL_INLINE Bytes load_bytes(const uint8_t* from) { return {_mm512_loadu_si512(from)}; }
CUDAPREFILL_INLINE void store_bytes(uint8_t* to, Bytes bytes) { _mm512_storeu_si512(to, bytes.lanes); }
CUDAPREFILL_INLINE Bytes broadcast_bytes(const int8_t* from) {
  int32_t four;
  std::memcpy(&four, from, sizeof(four));
  return {_mm512_set1_epi32(four)};
}
CUDAPREFILL_INLINE Bytes low_nibbles(Bytes bytes) { return {_mm512_and_si512(bytes.lanes, _mm512_set1_epi8(15))}; }
CUDAPREFILL_INLINE Bytes high_nibbles(Bytes bytes) {
  return {_mm512_and_si512(_mm512_srli_epi16(bytes.lanes, 4), _mm512_set1_epi8(15))};
}
CUDAPREFILL_INLINE Bytes with_high_bits(Bytes bytes, Bytes high, int number) {
  const __m512i two = _mm512_and_si512(shifted_right(high.lanes, 2 * number), _mm512_set1_epi8(3));
  return {_mm512_or_si512(bytes.lanes, _mm512_slli_epi16(two, 4))};
}
CUDAPREFILL_INLINE Vec signed_byte(Bytes bytes, int i) {
  return {_mm512_cvtepi32_ps(_mm512_srai_epi32(shifted_left(bytes.lanes, 24 - 8 * i), 24))};
}
CUDAPREFILL_INLINE Vec unsigned_byte(Bytes bytes, int i) {
  return {_mm512_cvtepi32_ps(_mm512_and_si512(shifted_right(bytes.lanes, 8 * i), _mm512_set1_epi32(255)))};
}
CUDAPREFILL_INLINE void store_as_bytes(int8_t* to, Vec v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(v.lanes)));
}
CUDAPREFILL_INLINE Ints broadcast_int(int32_t value) { return {_mm512_set1_epi32(value)}; }
CUDAPREFILL_INLINE Vec to_float(Ints ints) { return {_mm512_cvtepi32_ps(ints.lanes)}; }
CUDAPREFILL_INLINE Ints times_255_plus(Ints a, Ints b) {
  return {_mm512_add_epi32(_mm512_sub_epi32(_mm512_slli_epi32(a.lanes, 8), a.lanes), b.lanes)};
}

#if CUDAPREFILL_ISA_VNNI
constexpr int kOffsetOfSigned = 128;
CUDAPREFILL_INLINE Bytes with_offset(Bytes bytes) {
  return {_mm512_xor_si512(bytes.lanes, _mm512_set1_epi8(static_cast<char>(0x80)))};
}
CUDAPREFILL_INLINE Ints multiply_add(Ints sums, Bytes w, Bytes x) {
  return {_mm512_dpbusd_epi32(sums.lanes, w.lanes, x.lanes)};
}
CUDAPREFILL_INLINE Ints multiply_add_signed(Ints sums, Bytes w, Bytes x) { return multiply_add(sums, w, x); }
#else
constexpr int kOffsetOfSigned = 0;
CUDAPREFILL_INLINE Bytes with_offset(Bytes bytes) { return bytes; }
// Pairs of products fit 16 bits: 2 * 63 * 127, and for signed w 2 * 128 * 127.
CUDAPREFILL_INLINE Ints multiply_add(Ints sums, Bytes w, Bytes x) {
  const __m512i pairs = _mm512_maddubs_epi16(w.lanes, x.lanes);
  return {_mm512_add_epi32(sums.lanes, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)))};
}
CUDAPREFILL_INLINE Ints multiply_add_signed(Ints sums, Bytes w, Bytes x) {
  const __m512i turned = _mm512_mask_sub_epi8(x.lanes, _mm512_movepi8_mask(w.lanes), _mm512_setzero_si512(), x.lanes);
  return multiply_add(sums, {_mm512_abs_epi8(w.lanes)}, {turned});
}
#endif

#elif CUDAPREFILL_ISA_AVX2

struct Bytes {
  __m256i lanes;
};
struct Ints {
  __m256i lanes;
};

// The intrinsics take counts that are constants for the parser, not those of unrolled loops.
CUDAPREFILL_INLINE __m256i shifted_right(__m256i lanes, int bits) {
  return reinterpret_cast<__m256i>(reinterpret_cast<__v8su>(lanes) >> bits);
}
CUDAPREFILL_INLINE __m256i shifted_left(__m256i lanes, int bits) {
  return reinterpret_cast<__m256i>(reinterpret_cast<__v8su>(lanes) << bits);
}
CUDAPREFILL_INLINE Bytes load_bytes(const uint8_t* from) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))};
}
CUDAPREFILL_INLINE void store_bytes(uint8_t* to, Bytes bytes) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), bytes.lanes);
}
CUDAPREFILL_INLINE Bytes broadcast_bytes(const int8_t* from) {
  int32_t four;
  std::memcpy(&four, from, sizeof(four));
  return {_mm256_set1_epi32(four)};
}
CUDAPREFILL_INLINE Bytes low_nibbles(Bytes bytes) { return {_mm256_and_si256(bytes.lanes, _mm256_set1_epi8(15))}; }
CUDAPREFILL_INLINE Bytes high_nibbles(Bytes bytes) {
  return {_mm256_and_si256(_mm256_srli_epi16(bytes.lanes, 4), _mm256_set1_epi8(15))};
}
CUDAPREFILL_INLINE Bytes with_high_bits(Bytes bytes, Bytes high, int number) {
  const __m256i two = _mm256_and_si256(shifted_right(high.lanes, 2 * number), _mm256_set1_epi8(3));
  return {_mm256_or_si256(bytes.lanes, _mm256_slli_epi16(two, 4))};
}
CUDAPREFILL_INLINE Vec signed_byte(Bytes bytes, int i) {
  return {_mm256_cvtepi32_ps(_mm256_srai_epi32(shifted_left(bytes.lanes, 24 - 8 * i), 24))};
}
CUDAPREFILL_INLINE Vec unsigned_byte(Bytes bytes, int i) {
  return {_mm256_cvtepi32_ps(_mm256_and_si256(shifted_right(bytes.lanes, 8 * i), _mm256_set1_epi32(255)))};
}
CUDAPREFILL_INLINE void store_as_bytes(int8_t* to, Vec v) {
  const __m256i ints = _mm256_cvtps_epi32(v.lanes);
  const __m128i halves = _mm_packs_epi32(_mm256_castsi256_si128(ints), _mm256_extracti128_si256(ints, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packs_epi16(halves, halves));
}
CUDAPREFILL_INLINE Ints broadcast_int(int32_t value) { return {_mm256_set1_epi32(value)}; }
CUDAPREFILL_INLINE Vec to_float(Ints ints) { return {_mm256_cvtepi32_ps(ints.lanes)}; }
CUDAPREFILL_INLINE Ints times_255_plus(Ints a, Ints b) {
  return {_mm256_add_epi32(_mm256_sub_epi32(_mm256_slli_epi32(a.lanes, 8), a.lanes), b.lanes)};
}

#if CUDAPREFILL_ISA_VNNI
constexpr int kOffsetOfSigned = 128;
CUDAPREFILL_INLINE Bytes with_offset(Bytes bytes) {
  return {_mm256_xor_si256(bytes.lanes, _mm256_set1_epi8(static_cast<char>(0x80)))};
}
CUDAPREFILL_INLINE Ints multiply_add(Ints sums, Bytes w, Bytes x) {
  return {_mm256_dpbusd_avx_epi32(sums.lanes, w.lanes, x.lanes)};
}
CUDAPREFILL_INLINE Ints multiply_add_signed(Ints sums, Bytes w, Bytes x) { return multiply_add(sums, w, x); }
#else
constexpr int kOffsetOfSigned = 0;
CUDAPREFILL_INLINE Bytes with_offset(Bytes bytes) { return bytes; }
CUDAPREFILL_INLINE Ints multiply_add(Ints sums, Bytes w, Bytes x) {
  const __m256i pairs = _mm256_maddubs_epi16(w.lanes, x.lanes);
  return {_mm256_add_epi32(sums.lanes, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))};
}
CUDAPREFILL_INLINE Ints multiply_add_signed(Ints sums, Bytes w, Bytes x) {
  return multiply_add(sums, {_mm256_abs_epi8(w.lanes)}, {_mm256_sign_epi8(x.lanes, w.lanes)});
}
#endif

#else

struct Bytes {
  FourInts lanes;
};
struct Ints {
  FourInts lanes;
};

CUDAPREFILL_INLINE FourInts four_ints(int32_t value) { return FourInts{value, value, value, value}; }
CUDAPREFILL_INLINE Bytes load_bytes(const uint8_t* from) {
  Bytes bytes;
  std::memcpy(&bytes.lanes, from, sizeof(bytes.lanes));
  return bytes;
}
CUDAPREFILL_INLINE void store_bytes(uint8_t* to, Bytes bytes) { std::memcpy(to, &bytes.lanes, sizeof(bytes.lanes)); }
CUDAPREFILL_INLINE Bytes broadcast_bytes(const int8_t* from) {
  int32_t four;
  std::memcpy(&four, from, sizeof(four));
  return {four_ints(four)};
}
CUDAPREFILL_INLINE Bytes low_nibbles(Bytes bytes) { return {bytes.lanes & four_ints(0x0f0f0f0f)}; }
CUDAPREFILL_INLINE Bytes high_nibbles(Bytes bytes) { return {bytes.lanes >> 4 & four_ints(0x0f0f0f0f)}; }
CUDAPREFILL_INLINE Bytes with_high_bits(Bytes bytes, Bytes high, int number) {
  return {bytes.lanes | (high.lanes >> 2 * number & four_ints(0x03030303)) << 4};
}
CUDAPREFILL_INLINE FourInts signed_byte_of(FourInts lanes, int i) { return lanes << (24 - 8 * i) >> 24; }
CUDAPREFILL_INLINE Vec signed_byte(Bytes bytes, int i) {
  return {__builtin_convertvector(signed_byte_of(bytes.lanes, i), FourFloats)};
}
CUDAPREFILL_INLINE Vec unsigned_byte(Bytes bytes, int i) {
  return {__builtin_convertvector(bytes.lanes >> 8 * i & four_ints(255), FourFloats)};
}
CUDAPREFILL_INLINE void store_as_bytes(int8_t* to, Vec v) {
  for (int i = 0; i < Vec::kWidth; ++i) to[i] = static_cast<int8_t>(v.lanes[i]);
}
CUDAPREFILL_INLINE Ints broadcast_int(int32_t value) { return {four_ints(value)}; }
CUDAPREFILL_INLINE Vec to_float(Ints ints) { return {__builtin_convertvector(ints.lanes, FourFloats)}; }
CUDAPREFILL_INLINE Ints times_255_plus(Ints a, Ints b) { return {a.lanes * 255 + b.lanes}; }

constexpr int kOffsetOfSigned = 0;
CUDAPREFILL_INLINE Bytes with_offset(Bytes bytes) { return bytes; }
CUDAPREFILL_INLINE Ints multiply_add_signed(Ints sums, Bytes w, Bytes x) {
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) sums.lanes += signed_byte_of(w.lanes, i) * signed_byte_of(x.lanes, i);
  return sums;
}
CUDAPREFILL_INLINE Ints multiply_add(Ints sums, Bytes w, Bytes x) { return multiply_add_signed(sums, w, x); }

#endif

}  // namespace cudaprefill::cpu::CUDAPREFILL_ISA
