// ldmatrix and mma.sync.m16n8k16 (sm_80 and later).
//
// Fragments, by lane = 4 * g + t (g = 0..7, t = 0..3); every register holds two neighbouring 16-bit elements:
//
//   A [16 x 16]               B [16 x 8]            C [16 x 8], float32
//   a0: row g,     k 2t 2t+1    b0: k 2t 2t+1, col g   c0 c1: row g,     col 2t 2t+1
//   a1: row g + 8, k 2t 2t+1    b1: k 2t+8 2t+9, col g c2 c3: row g + 8, col 2t 2t+1
//   a2: row g,     k 2t+8 2t+9
//   a3: row g + 8, k 2t+8 2t+9
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "csrc/cuda/element.cuh"

namespace cudaprefill::ptx {

// Four 8x8 matrices of 16-bit elements. Lane i gives the shared address of row i % 8 of matrix i / 8; register m of
// lane 4 g + t receives elements 2t and 2t + 1 of row g of matrix m.
__device__ __forceinline__ void load_matrices(uint32_t address, uint32_t (&out)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(address)
               : "memory");
}

// The same of the transposed matrices: elements 2t and 2t + 1 of column g.
__device__ __forceinline__ void load_matrices_transposed(uint32_t address, uint32_t (&out)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(address)
               : "memory");
}

// C += A B, accumulated in float32.
template <class Element>
__device__ __forceinline__ void multiply_accumulate(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);

template <>
__device__ __forceinline__ void multiply_accumulate<BFloat16>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                                              uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <>
__device__ __forceinline__ void multiply_accumulate<Half>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                                          uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace cudaprefill::ptx
