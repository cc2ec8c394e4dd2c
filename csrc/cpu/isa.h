// Instruction set levels. The sources that CMakeLists.txt lists as CUDAPREFILL_ISA_SOURCES are compiled once for each
// level, with that level's compiler flags and with CUDAPREFILL_ISA defined as its name, which is also the namespace of
// all they define. So no two levels share a symbol, and none can be linked in place of another.
//
// What they use from outside (the standard library) may still leave equal inline functions in several objects, of which
// the linker keeps the first: CMakeLists.txt links what runs everywhere first, then the levels from the lowest to the
// highest, so the one kept never needs more than its caller. tests/ops/test_instruction_sets.py reads the library.
#pragma once

#ifndef CUDAPREFILL_ISA
#error "files that include isa.h are compiled once for each level, with CUDAPREFILL_ISA defined (see CMakeLists.txt)"
#endif

#define CUDAPREFILL_ISA_IS_plain 1
#define CUDAPREFILL_ISA_IS_avx2 2
#define CUDAPREFILL_ISA_IS_avx512 3
#define CUDAPREFILL_ISA_IS_avx2_vnni 4
#define CUDAPREFILL_ISA_IS_avx512_vnni 5
#define CUDAPREFILL_ISA_IS_avx512_bf16 6
#define CUDAPREFILL_ISA_CONCAT(a, b) a##b
#define CUDAPREFILL_ISA_NUMBER(name) CUDAPREFILL_ISA_CONCAT(CUDAPREFILL_ISA_IS_, name)
#define CUDAPREFILL_ISA_PLAIN (CUDAPREFILL_ISA_NUMBER(CUDAPREFILL_ISA) == 1)
#define CUDAPREFILL_ISA_VNNI \
  (CUDAPREFILL_ISA_NUMBER(CUDAPREFILL_ISA) == 4 || CUDAPREFILL_ISA_NUMBER(CUDAPREFILL_ISA) == 5)
#define CUDAPREFILL_ISA_AVX2 \
  (CUDAPREFILL_ISA_NUMBER(CUDAPREFILL_ISA) == 2 || CUDAPREFILL_ISA_NUMBER(CUDAPREFILL_ISA) == 4)
#define CUDAPREFILL_ISA_AVX512 \
  (CUDAPREFILL_ISA_NUMBER(CUDAPREFILL_ISA) == 3 || CUDAPREFILL_ISA_NUMBER(CUDAPREFILL_ISA) >= 5)
