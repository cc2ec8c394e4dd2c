#include "csrc/cpu/kernel_declarations.h"
#include "csrc/cpu/kernels.h"

namespace cudaprefill::cpu::CUDAPREFILL_ISA {

extern const KernelTable kKernels;
const KernelTable kKernels = {
    .write_kv = write_kv,
    .prefill_attention = prefill_attention,
    .decode_attention = decode_attention,
    .rope_write_kv = rope_write_kv,
    .rms_norm = rms_norm,
    .silu_and_mul = silu_and_mul,
    .gelu_tanh_and_mul = gelu_tanh_and_mul,
    .add_lora = add_lora,
    .linear = linear,
    .linear_integers = linear_integers,
    .gated_linear = gated_linear,
    .gated_linear_integers = gated_linear_integers,
    .dequantise_rows = dequantise_rows,
};

}  // namespace cudaprefill::cpu::CUDAPREFILL_ISA
