// The emulated device behind the ops: each function hands the tensors of a call to the machine and runs the kernels.
#pragma once

#include <cstdint>

#include "csrc/cuda/kernels.h"
#include "csrc/ops/expert_params.h"
#include "csrc/ops/params.h"

namespace cudaprefill::emu {

struct EmulatedBackend {
  static inline int64_t l2_bytes = int64_t{40} << 20;
  static inline cuda::PrefillKernel wanted_prefill_kernel = cuda::PrefillKernel::kBest;
  static inline cuda::DecodeKernel wanted_decode_kernel = cuda::DecodeKernel::kBest;

  static void write_kv(WriteKvParams params);
  static void rope_write_kv(RopeWriteKvParams params);
  static void rms_norm(RmsNormParams params);
  static void silu_and_mul(SiluAndMulParams params);
  static void gelu_tanh_and_mul(GeluTanhAndMulParams params);
  static void expert_mlp(ExpertMlpParams params);
  static void copy_blocks(CopyBlocksParams params);
  static void add_lora(AddLoraParams params);
  static void prefill_attention(PrefillAttentionParams params);
  static void decode_attention(DecodeAttentionParams params);
  static void mixed_attention(PrefillAttentionParams params, int num_decodes);
};

}  // namespace cudaprefill::emu
