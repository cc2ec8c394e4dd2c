// The 64 bits by which wgmma finds an operand in shared memory.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace cudaprefill {

// 16 of the inner dimension of a matrix of 16-bit elements, swizzled by 128 bytes. Start, leading and stride offset are
// bytes, multiples of 16. What the offsets mean depends on which way the matrix lies:
//
//   rows run along the inner dimension (K-major) | along the outer one (MN-major, "transposed")
//   stride: from 8 outer rows to the next 8      | stride: from 8 inner rows to the next 8
//   leading: unused, 16 elements lie in one row  | leading: from 64 outer elements of a row to the next 64
//
// The swizzle goes by the bits of the address, so a start inside a row of 128 bytes is fine where the rows themselves
// begin at multiples of 1024: the base offset stays 0.
__host__ __device__ constexpr uint64_t matrix_descriptor(uint32_t start, uint32_t leading_bytes,
                                                         uint32_t stride_bytes) {
  constexpr uint64_t kSwizzle128Bytes = uint64_t{1} << 62;
  return kSwizzle128Bytes | uint64_t{(start & 0x3ffff) >> 4} | uint64_t{leading_bytes >> 4} << 16 |
         uint64_t{stride_bytes >> 4} << 32;
}

// The same matrix, `bytes` further on. One 32-bit addition: the upper half, with the stride, is a constant.
__host__ __device__ constexpr uint64_t advance_descriptor(uint64_t descriptor, uint32_t bytes) {
  const uint64_t upper = descriptor >> 32 << 32;
  return upper | (static_cast<uint32_t>(descriptor) + (bytes >> 4));
}

}  // namespace cudaprefill
