/* Dot products of bytes between registers and nothing else: as many as a core gives. machine.py compiles this when a
   benchmark runs. No vector register outlives a call, so none needs to be named as overwritten. */
#include <stdint.h>

/* Twelve sums, so that none waits for itself. */
#define TWELVE(DO) DO("0") DO("1") DO("2") DO("3") DO("4") DO("5") DO("6") DO("7") DO("8") DO("9") DO("10") DO("11")
#define OF_512_BITS(sum) "vpdpbusd %%zmm30, %%zmm31, %%zmm" sum "\n"
#define OF_256_BITS(sum) "%{vex%} vpdpbusd %%ymm14, %%ymm15, %%ymm" sum "\n"
#define REPEAT(products, rounds) __asm__ volatile("1:\n" products "dec %0\njnz 1b" : "+r"(rounds) : : "cc")

/* Returns how many multiplications and additions that were. */
int64_t products_of_512_bits(int64_t rounds) {
  int64_t left = rounds;
  REPEAT(TWELVE(OF_512_BITS), left);
  return rounds * 12 * 64 * 2;
}

int64_t products_of_256_bits(int64_t rounds) {
  int64_t left = rounds;
  REPEAT(TWELVE(OF_256_BITS), left);
  return rounds * 12 * 32 * 2;
}
