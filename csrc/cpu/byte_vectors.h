// Vectors of bytes, four in each 32-bit lane, and sums of their products, with as many lanes as a Vec:
//
//   Bytes                     load_bytes(p); broadcast_bytes(p): the same four in all lanes
//   low_nibbles(b), high_nibbles(b)      of each byte
//   with_high_bits(b, h, n)   b plus the n-th two bits of each byte of h, 16 times as large
//   signed_byte(b, i), unsigned_byte(b, i)   byte i of each lane as a float
//   Words                     two signed words of 16 bits in each lane; broadcast_words(p): the same two in all lanes
//   even_words(b), odd_words(b)      bytes 0 and 2, or 1 and 3, of each lane, which are unsigned; even_signed_words(b)
//                             and odd_signed_words(b): which are signed
//   store_part(p, part)       32 whole numbers in vectors of floats, to signed bytes, or to words: of each four words
//                             the two in the middle change places, so that two neighbours meet even_words, and the
//                             other two odd_words. NaN becomes any number.
//   Ints                      broadcast_int(v), to_float(v); + works lane by lane
//   multiply_add(sums, w, x)  sums plus, in each lane, the two products of words w and x, or the four of bytes. Of
//                             bytes x is signed, from -127 to 127; w is from 0 to 63, or with multiply_add_signed
//                             signed. Exact: nothing saturates.
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
struct Words {
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
CUDAPREFILL_INLINE Ints broadcast_int(int32_t value) { return {_mm512_set1_epi32(value)}; }
CUDAPREFILL_INLINE Ints operator+(Ints a, Ints b) { return {_mm512_add_epi32(a.lanes, b.lanes)}; }
CUDAPREFILL_INLINE Vec to_float(Ints ints) { return {_mm512_cvtepi32_ps(ints.lanes)}; }
CUDAPREFILL_INLINE Words even_words(Bytes bytes) {
  return {_mm512_and_si512(bytes.lanes, _mm512_set1_epi32(0xff00ff))};
}
CUDAPREFILL_INLINE Words odd_words(Bytes bytes) { return {_mm512_srli_epi16(bytes.lanes, 8)}; }
CUDAPREFILL_INLINE Words even_signed_words(Bytes bytes) {
  return {_mm512_srai_epi16(_mm512_slli_epi16(bytes.lanes, 8), 8)};
}
CUDAPREFILL_INLINE Words odd_signed_words(Bytes bytes) { return {_mm512_srai_epi16(bytes.lanes, 8)}; }
CUDAPREFILL_INLINE Words broadcast_words(const int16_t* from) {
  int32_t two;
  std::memcpy(&two, from, sizeof(two));
  return {_mm512_set1_epi32(two)};
}
CUDAPREFILL_INLINE void store_part(int8_t* to, const Vec (&part)[2]) {
  for (int i = 0; i < 2; ++i) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 16 * i), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(part[i].lanes)));
  }
}
CUDAPREFILL_INLINE void store_part(int16_t* to, const Vec (&part)[2]) {
  // The low words of both, in order but for those in the middle.
  const __m512i order = _mm512_set_epi16(62, 58, 60, 56, 54, 50, 52, 48, 46, 42, 44, 40, 38, 34, 36, 32,  //
                                         30, 26, 28, 24, 22, 18, 20, 16, 14, 10, 12, 8, 6, 2, 4, 0);
  _mm512_storeu_si512(
      to, _mm512_permutex2var_epi16(_mm512_cvtps_epi32(part[0].lanes), order, _mm512_cvtps_epi32(part[1].lanes)));
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
CUDAPREFILL_INLINE Ints multiply_add(Ints sums, Words w, Words x) {
  return {_mm512_dpwssd_epi32(sums.lanes, w.lanes, x.lanes)};
}
#else
constexpr int kOffsetOfSigned = 0;
CUDAPREFILL_INLINE Bytes with_offset(Bytes bytes) { return bytes; }
CUDAPREFILL_INLINE Ints multiply_add(Ints sums, Words w, Words x) {
  return {_mm512_add_epi32(sums.lanes, _mm512_madd_epi16(w.lanes, x.lanes))};
}
// Pairs of products fit 16 bits: 2 * 63 * 127, and for signed w 2 * 128 * 127.
CUDAPREFILL_INLINE Ints multiply_add(Ints sums, Bytes w, Bytes x) {
  const __m512i pairs = _mm512_maddubs_epi16(w.lanes, x.lanes);
  return {_mm512_add_epi32(sums.lanes, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)))};
}
CUDAPREFILL_INLINE Ints multiply_add_signed(Ints sums, Bytes w, Bytes x) {
  const __m512i turned = _mm512_mask_sub_epi8(x.lanes, _mm512_movepi8_mask(w.lanes), _mm512_setzero_si512(), x.lanes);
  return multiply_add(sums, Bytes{_mm512_abs_epi8(w.lanes)}, Bytes{turned});
}
#endif

#elif CUDAPREFILL_ISA_AVX2

struct Bytes {
  __m256i lanes;
};
struct Words {
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
CUDAPREFILL_INLINE Ints broadcast_int(int32_t value) { return {_mm256_set1_epi32(value)}; }
CUDAPREFILL_INLINE Ints operator+(Ints a, Ints b) { return {_mm256_add_epi32(a.lanes, b.lanes)}; }
CUDAPREFILL_INLINE Vec to_float(Ints ints) { return {_mm256_cvtepi32_ps(ints.lanes)}; }
CUDAPREFILL_INLINE Words even_words(Bytes bytes) {
  return {_mm256_and_si256(bytes.lanes, _mm256_set1_epi32(0xff00ff))};
}
CUDAPREFILL_INLINE Words odd_words(Bytes bytes) { return {_mm256_srli_epi16(bytes.lanes, 8)}; }
CUDAPREFILL_INLINE Words even_signed_words(Bytes bytes) {
  return {_mm256_srai_epi16(_mm256_slli_epi16(bytes.lanes, 8), 8)};
}
CUDAPREFILL_INLINE Words odd_signed_words(Bytes bytes) { return {_mm256_srai_epi16(bytes.lanes, 8)}; }
CUDAPREFILL_INLINE Words broadcast_words(const int16_t* from) {
  int32_t two;
  std::memcpy(&two, from, sizeof(two));
  return {_mm256_set1_epi32(two)};
}
CUDAPREFILL_INLINE __m128i to_words(Vec v) {
  const __m256i ints = _mm256_cvtps_epi32(v.lanes);
  return _mm_packs_epi32(_mm256_castsi256_si128(ints), _mm256_extracti128_si256(ints, 1));
}
CUDAPREFILL_INLINE void store_part(int8_t* to, const Vec (&part)[4]) {
  for (int i = 0; i < 2; ++i) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 16 * i),
                     _mm_packs_epi16(to_words(part[2 * i]), to_words(part[2 * i + 1])));
  }
}
CUDAPREFILL_INLINE void store_part(int16_t* to, const Vec (&part)[4]) {
  for (int i = 0; i < 4; ++i) {
    const __m128i low_turned = _mm_shufflelo_epi16(to_words(part[i]), 0b11'01'10'00);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 8 * i), _mm_shufflehi_epi16(low_turned, 0b11'01'10'00));
  }
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
CUDAPREFILL_INLINE Ints multiply_add(Ints sums, Words w, Words x) {
  return {_mm256_dpwssd_avx_epi32(sums.lanes, w.lanes, x.lanes)};
}
#else
constexpr int kOffsetOfSigned = 0;
CUDAPREFILL_INLINE Bytes with_offset(Bytes bytes) { return bytes; }
CUDAPREFILL_INLINE Ints multiply_add(Ints sums, Words w, Words x) {
  return {_mm256_add_epi32(sums.lanes, _mm256_madd_epi16(w.lanes, x.lanes))};
}
CUDAPREFILL_INLINE Ints multiply_add(Ints sums, Bytes w, Bytes x) {
  const __m256i pairs = _mm256_maddubs_epi16(w.lanes, x.lanes);
  return {_mm256_add_epi32(sums.lanes, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))};
}
CUDAPREFILL_INLINE Ints multiply_add_signed(Ints sums, Bytes w, Bytes x) {
  return multiply_add(sums, Bytes{_mm256_abs_epi8(w.lanes)}, Bytes{_mm256_sign_epi8(x.lanes, w.lanes)});
}
#endif

#else

struct Bytes {
  FourInts lanes;
};
struct Words {
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
CUDAPREFILL_INLINE Ints broadcast_int(int32_t value) { return {four_ints(value)}; }
CUDAPREFILL_INLINE Ints operator+(Ints a, Ints b) { return {a.lanes + b.lanes}; }
CUDAPREFILL_INLINE Vec to_float(Ints ints) { return {__builtin_convertvector(ints.lanes, FourFloats)}; }
CUDAPREFILL_INLINE Words even_words(Bytes bytes) { return {bytes.lanes & four_ints(0xff00ff)}; }
CUDAPREFILL_INLINE Words odd_words(Bytes bytes) { return even_words({bytes.lanes >> 8}); }
CUDAPREFILL_INLINE Words even_signed_words(Bytes bytes) {
  return {(signed_byte_of(bytes.lanes, 0) & four_ints(0xffff)) | signed_byte_of(bytes.lanes, 2) << 16};
}
CUDAPREFILL_INLINE Words odd_signed_words(Bytes bytes) {
  return {(signed_byte_of(bytes.lanes, 1) & four_ints(0xffff)) | signed_byte_of(bytes.lanes, 3) << 16};
}
CUDAPREFILL_INLINE Words broadcast_words(const int16_t* from) {
  int32_t two;
  std::memcpy(&two, from, sizeof(two));
  return {four_ints(two)};
}
CUDAPREFILL_INLINE int32_t to_int(float whole) { return whole != whole ? 0 : static_cast<int32_t>(whole); }
CUDAPREFILL_INLINE void store_part(int8_t* to, const Vec (&part)[8]) {
  for (int i = 0; i < 32; ++i) to[i] = static_cast<int8_t>(to_int(part[i / 4].lanes[i % 4]));
}
CUDAPREFILL_INLINE void store_part(int16_t* to, const Vec (&part)[8]) {
  constexpr int kPlaces[4] = {0, 2, 1, 3};
  for (int i = 0; i < 32; ++i) {
    to[i / 4 * 4 + kPlaces[i % 4]] = static_cast<int16_t>(to_int(part[i / 4].lanes[i % 4]));
  }
}
CUDAPREFILL_INLINE Ints multiply_add(Ints sums, Words w, Words x) {
  const FourInts low = (w.lanes << 16 >> 16) * (x.lanes << 16 >> 16);
  return {sums.lanes + low + (w.lanes >> 16) * (x.lanes >> 16)};
}

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
