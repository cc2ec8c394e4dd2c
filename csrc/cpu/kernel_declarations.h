// The kernels of one instruction set level, before they meet in its table.
#pragma once

#include "csrc/cpu/isa.h"
#include "csrc/ops/params.h"

namespace cudaprefill::cpu::CUDAPREFILL_ISA {

void write_kv(const WriteKvParams& params);
void prefill_attention(const PrefillAttentionParams& params);
void decode_attention(const DecodeAttentionParams& params);
void rope_write_kv(const RopeWriteKvParams& params);
void rms_norm(const RmsNormParams& params);
void silu_and_mul(const SiluAndMulParams& params);
void gelu_tanh_and_mul(const GeluTanhAndMulParams& params);
void add_lora(const AddLoraParams& params);
void linear(const LinearParams& params);             // of floats
void linear_integers(const LinearParams& params);    // of groups of blocks and rounded activations
void gated_linear(const GatedLinearParams& params);  // of floats
void gated_linear_integers(const GatedLinearParams& params);
void dequantise_rows(const DequantiseRowsParams& params);

}  // namespace cudaprefill::cpu::CUDAPREFILL_ISA
