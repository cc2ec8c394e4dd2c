// wgmma: products of a warpgroup's 64 rows, asynchronous, with operands read from shared memory (sm_90a).
//
// Warp w of the warpgroup has rows 16 w .. 16 w + 15. Its accumulators c[n][i] and its fragment of A lie over the lanes
// as those of mma.sync.m16n8k16 do (ptx/matrix.cuh): c[n] is columns 8 n .. 8 n + 7.
//
// A batch of products is
//
//     fence_products();        // registers and these products in order
//     multiply_...();          // any number: they begin in order
//     commit_products();
//     wait_for_products<0>();  // until then neither accumulators nor operands may be touched
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "csrc/cuda/element.cuh"

namespace cudaprefill::ptx {

__device__ __forceinline__ void fence_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until at most `pending` of the latest batches are unfinished.
template <int pending>
__device__ __forceinline__ void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

// Tells the compiler that the accumulators change here, at a wait that does not name them.
template <int tiles>
__device__ __forceinline__ void pin_accumulators(float (&c)[tiles][4]) {
#pragma unroll
  for (int n = 0; n < tiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) asm volatile("" : "+f"(c[n][i])::"memory");
  }
}

// The instructions, one for each number format and number of columns. Operands of assembly are numbered, accumulators
// first, so the text must spell all of them out.
template <class Element, int columns>
struct WarpgroupProduct;

#define CUDAPREFILL_TEN(t) \
  "%" #t "0, %" #t "1, %" #t "2, %" #t "3, %" #t "4, %" #t "5, %" #t "6, %" #t "7, %" #t "8, %" #t "9, "
#define CUDAPREFILL_30 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, " CUDAPREFILL_TEN(1) CUDAPREFILL_TEN(2)
#define CUDAPREFILL_60 CUDAPREFILL_30 CUDAPREFILL_TEN(3) CUDAPREFILL_TEN(4) CUDAPREFILL_TEN(5)
#define CUDAPREFILL_90 CUDAPREFILL_60 CUDAPREFILL_TEN(6) CUDAPREFILL_TEN(7) CUDAPREFILL_TEN(8)
#define CUDAPREFILL_120 CUDAPREFILL_90 CUDAPREFILL_TEN(9) CUDAPREFILL_TEN(10) CUDAPREFILL_TEN(11)
#define CUDAPREFILL_REGISTERS_64 CUDAPREFILL_30 "%30, %31"
#define CUDAPREFILL_REGISTERS_80 CUDAPREFILL_30 "%30, %31, %32, %33, %34, %35, %36, %37, %38, %39"
#define CUDAPREFILL_REGISTERS_112 CUDAPREFILL_30 CUDAPREFILL_TEN(3) CUDAPREFILL_TEN(4) "%50, %51, %52, %53, %54, %55"
#define CUDAPREFILL_REGISTERS_128 CUDAPREFILL_60 "%60, %61, %62, %63"
#define CUDAPREFILL_REGISTERS_256 CUDAPREFILL_120 "%120, %121, %122, %123, %124, %125, %126, %127"

#define CUDAPREFILL_TILE(n) "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])
#define CUDAPREFILL_TILES(n) \
  CUDAPREFILL_TILE(n), CUDAPREFILL_TILE(n + 1), CUDAPREFILL_TILE(n + 2), CUDAPREFILL_TILE(n + 3)
#define CUDAPREFILL_TILES_64 CUDAPREFILL_TILES(0), CUDAPREFILL_TILES(4)
#define CUDAPREFILL_TILES_80 CUDAPREFILL_TILES_64, CUDAPREFILL_TILE(8), CUDAPREFILL_TILE(9)
#define CUDAPREFILL_TILES_112 CUDAPREFILL_TILES_64, CUDAPREFILL_TILES(8), CUDAPREFILL_TILE(12), CUDAPREFILL_TILE(13)
#define CUDAPREFILL_TILES_128 CUDAPREFILL_TILES_64, CUDAPREFILL_TILES(8), CUDAPREFILL_TILES(12)
#define CUDAPREFILL_TILES_256 \
  CUDAPREFILL_TILES_128, CUDAPREFILL_TILES(16), CUDAPREFILL_TILES(20), CUDAPREFILL_TILES(24), CUDAPREFILL_TILES(28)

// o0 to o6: the numbers of the operands after the accumulators.
#define CUDAPREFILL_PRODUCT(Element, format, columns, o0, o1, o2, o3, o4, o5, o6)                            \
  template <>                                                                                                \
  struct WarpgroupProduct<Element, columns> {                                                                \
    template <bool transposed>                                                                               \
    __device__ __forceinline__ static void of_shared(float (&c)[columns / 8][4], uint64_t a, uint64_t b,     \
                                                     bool accumulate) {                                      \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #o2                                                  \
                   ", 0;\n"                                                                                  \
                   "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." format "." format                 \
                   " {" CUDAPREFILL_REGISTERS_##columns "}, %" #o0 ", %" #o1 ", p, 1, 1, 0, %" #o3 ";\n}"    \
                   : CUDAPREFILL_TILES_##columns                                                             \
                   : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)), "n"(static_cast<int>(transposed)));  \
    }                                                                                                        \
    template <bool transposed>                                                                               \
    __device__ __forceinline__ static void of_registers(float (&c)[columns / 8][4], const uint32_t (&a)[4],  \
                                                        uint64_t b, bool accumulate) {                       \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #o5                                                  \
                   ", 0;\n"                                                                                  \
                   "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." format "." format                 \
                   " {" CUDAPREFILL_REGISTERS_##columns "}, {%" #o0 ", %" #o1 ", %" #o2 ", %" #o3 "}, %" #o4 \
                                                        ", p, 1, 1, %" #o6 ";\n}"                            \
                   : CUDAPREFILL_TILES_##columns                                                             \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)),  \
                     "n"(static_cast<int>(transposed)));                                                     \
    }                                                                                                        \
  };

#define CUDAPREFILL_PRODUCTS(Element, format)                           \
  CUDAPREFILL_PRODUCT(Element, format, 64, 32, 33, 34, 35, 36, 37, 38)  \
  CUDAPREFILL_PRODUCT(Element, format, 80, 40, 41, 42, 43, 44, 45, 46)  \
  CUDAPREFILL_PRODUCT(Element, format, 112, 56, 57, 58, 59, 60, 61, 62) \
  CUDAPREFILL_PRODUCT(Element, format, 128, 64, 65, 66, 67, 68, 69, 70) \
  CUDAPREFILL_PRODUCT(Element, format, 256, 128, 129, 130, 131, 132, 133, 134)
CUDAPREFILL_PRODUCTS(BFloat16, "bf16")
CUDAPREFILL_PRODUCTS(Half, "f16")

// C = A B, or C += A B where `accumulate`, of 64 rows, 16 of the inner dimension and 8 * tiles columns. A is K-major in
// shared memory; B is, too, or `transposed`.
template <class Element, bool transposed, int tiles>
__device__ __forceinline__ void multiply_shared(float (&c)[tiles][4], uint64_t a, uint64_t b, bool accumulate) {
  WarpgroupProduct<Element, tiles * 8>::template of_shared<transposed>(c, a, b, accumulate);
}

// The same with A from registers.
template <class Element, bool transposed, int tiles>
__device__ __forceinline__ void multiply_registers(float (&c)[tiles][4], const uint32_t (&a)[4], uint64_t b,
                                                   bool accumulate) {
  WarpgroupProduct<Element, tiles * 8>::template of_registers<transposed>(c, a, b, accumulate);
}

}  // namespace cudaprefill::ptx
