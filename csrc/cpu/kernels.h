// The CPU kernels, each in the fastest version that this machine runs (see dispatch.h).
//
// They check the values that they read anyway: an out-of-range slot, position or block id raises std::out_of_range,
// with the value and its bound.
#pragma once

#include "csrc/ops/params.h"

namespace cudaprefill::cpu {

void write_kv(const WriteKvParams& params);
void prefill_attention(const PrefillAttentionParams& params);
void decode_attention(const DecodeAttentionParams& params);
void rope_write_kv(const RopeWriteKvParams& params);
void rms_norm(const RmsNormParams& params);
void silu_and_mul(const SiluAndMulParams& params);
void gelu_tanh_and_mul(const GeluTanhAndMulParams& params);
void copy_blocks(const CopyBlocksParams& params);
void add_lora(const AddLoraParams& params);
void linear(const LinearParams& params);
void gated_linear(const GatedLinearParams& params);
void group_blocks(const GroupBlocksParams& params);
void dequantise_rows(const DequantiseRowsParams& params);

// One version of all kernels. Each instruction set level (isa.h) defines one, or improves on that of another.
struct KernelTable {
  void (*write_kv)(const WriteKvParams&);
  void (*prefill_attention)(const PrefillAttentionParams&);
  void (*decode_attention)(const DecodeAttentionParams&);
  void (*rope_write_kv)(const RopeWriteKvParams&);
  void (*rms_norm)(const RmsNormParams&);
  void (*silu_and_mul)(const SiluAndMulParams&);
  void (*gelu_tanh_and_mul)(const GeluTanhAndMulParams&);
  void (*add_lora)(const AddLoraParams&);
  void (*linear)(const LinearParams&);
  void (*linear_integers)(const LinearParams&);
  void (*gated_linear)(const GatedLinearParams&);
  void (*gated_linear_integers)(const GatedLinearParams&);
  void (*dequantise_rows)(const DequantiseRowsParams&);
};

}  // namespace cudaprefill::cpu
