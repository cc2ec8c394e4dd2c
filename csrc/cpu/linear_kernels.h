// The ways to multiply by a weight matrix; linear.cc chooses.
#pragma once

#include "csrc/cpu/isa.h"
#include "csrc/ops/params.h"

namespace cudaprefill::cpu::CUDAPREFILL_ISA {

// Streams the weights once and forms dot products: bound by the reading of the weights while rows are few.
void linear_few_rows(const LinearParams& params);

// Packs blocks of the weights into tiles that stay in the caches while all rows pass by: bound by arithmetic.
void linear_many_rows(const LinearParams& params);

// The same with gate and up side by side, their sums in a cache until the activation has been applied. Of weights in
// groups, no group of which may have rows of both: num_outputs / 2 must be a multiple of kGroupRows.
void gated_linear_many_rows(const GatedLinearParams& params);

// Of weights in groups of blocks: at most kFewRowsOfBlocks rows of x, for which every weight becomes a float once, in a
// register. Two rows took two thirds of the time that packed tiles take with AVX-512 and half of it with AVX2, four
// rows 0.82 with AVX-512; with more, tiles are as fast or faster.
constexpr int kFewRowsOfBlocks = CUDAPREFILL_ISA_AVX512 ? 4 : 2;
void linear_few_rows_of_blocks(const LinearParams& params);

}  // namespace cudaprefill::cpu::CUDAPREFILL_ISA
