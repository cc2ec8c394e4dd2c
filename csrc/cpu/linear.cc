#include "csrc/cpu/gated_linear.h"
#include "csrc/cpu/kernel_declarations.h"
#include "csrc/cpu/linear_kernels.h"

namespace cudaprefill::cpu::CUDAPREFILL_ISA {

// Up to this many rows of x, dot products are faster than tiles, for packing the weights costs more than it saves.
// Float32 GFLOP/s of one Zen 5 core, dot products against tiles:
//
//   weight              8 rows       16       24       32       48
//   3072 x 576  AVX-512  207/124  201/166  198/183  206/181  206/189
//   576 x 1536  AVX-512  140/118  168/167  160/185  183/193  172/212
//   3072 x 576  AVX2       84/62    84/86    87/92    87/99   88/105
//   576 x 1536  AVX2       67/65    70/90   73/106   73/104   73/114
//   576 x 1536  plain      43/14    42/21    48/26    48/28    46/35 (64 rows)
//
// The matmul of torch (MKL) reaches 68 at 8 rows, 85 at 16, 91 at 32 and 105 at 1,600, where tiles reach 240 with
// AVX-512 and 118 with AVX2.
constexpr int64_t kFewRows = CUDAPREFILL_ISA_AVX512 ? 24 : CUDAPREFILL_ISA_AVX2 ? 12 : 64;

namespace {

bool in_blocks(const LinearParams& params) { return params.block_format != BlockFormat::kNone; }

bool has_many_rows(const LinearParams& params) {
  return params.num_rows > (in_blocks(params) ? kFewRowsOfBlocks : kFewRows);
}

}  // namespace

void linear(const LinearParams& params) {
  if (has_many_rows(params)) {
    linear_many_rows(params);
  } else {
    in_blocks(params) ? linear_few_rows_of_blocks(params) : linear_few_rows(params);
  }
}

void gated_linear(const GatedLinearParams& params) {
  const bool groups_have_both = in_blocks(params.gate_up) && params.gate_up.num_outputs / 2 % kGroupRows != 0;
  if (has_many_rows(params.gate_up) && !groups_have_both) {
    gated_linear_many_rows(params);
  } else {
    gated_linear_in_two_steps(params);
  }
}

}  // namespace cudaprefill::cpu::CUDAPREFILL_ISA
