// From the tensors of a call to the Params of a kernel. Every wrong shape, dtype, device or stride raises here, before
// anything is written; values inside tensors (slots, block ids, lengths) are checked by the kernels that read them.
#pragma once

#include <optional>
#include <string>

#include "csrc/ops/params.h"
#include "csrc/ops/tensor_arg.h"

namespace cudaprefill::ops {

// Of caches of float8_e4m3fn, [num_kv_heads] float32 each; none with other caches.
struct CacheScales {
  const std::optional<Tensor>& k;
  const std::optional<Tensor>& v;
};

WriteKvParams write_kv_params(const Tensor& k, const Tensor& v, const Tensor& k_cache, const Tensor& v_cache,
                              const Tensor& slot_mapping, const CacheScales& scales);

// Of prefill_attention, and of mixed_attention as far as they are the same.
PrefillAttentionParams prefill_attention_params(const char* op, const Tensor& q, const Tensor& k_cache,
                                                const Tensor& v_cache, const Tensor& block_table,
                                                const Tensor& cu_seqlens_q, const Tensor& context_lens,
                                                const Tensor& out, double scale, int64_t window, double softcap,
                                                const CacheScales& scales);

DecodeAttentionParams decode_attention_params(const Tensor& q, const Tensor& k_cache, const Tensor& v_cache,
                                              const Tensor& block_table, const Tensor& context_lens, const Tensor& out,
                                              double scale, int64_t window, double softcap, const CacheScales& scales);

// How many requests of a mixed_attention are decodes.
int32_t num_decodes_of(const PrefillAttentionParams& params, int64_t num_decodes);

RopeWriteKvParams rope_write_kv_params(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cos_sin,
                                       const Tensor& position_ids, const Tensor& k_cache, const Tensor& v_cache,
                                       const Tensor& slot_mapping, const std::optional<Tensor>& q_norm,
                                       const std::optional<Tensor>& k_norm, double norm_eps, const CacheScales& scales);

// For these the output is allocated once the inputs are known to be right; `out` and `out_stride` are left to the
// caller.
RmsNormParams rms_norm_params(const Tensor& x, const Tensor& weight, double eps);
RmsNormParams add_rms_norm_params(const Tensor& x, const Tensor& residual, const Tensor& weight, double eps);
SiluAndMulParams silu_and_mul_params(const Tensor& x);
GeluTanhAndMulParams gelu_tanh_and_mul_params(const Tensor& x);
LinearParams linear_params(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias);
LinearParams linear_blocks_params(const Tensor& x, const Tensor& groups, int64_t block_format, int64_t num_outputs,
                                  const std::optional<Tensor>& bias, int64_t activation_bits);
GatedLinearParams gated_linear_params(const Tensor& x, const Tensor& gate_up, const std::string& activation,
                                      const std::optional<Tensor>& bias);
GatedLinearParams gated_linear_blocks_params(const Tensor& x, const Tensor& groups, int64_t block_format,
                                             int64_t inner_size, const std::string& activation,
                                             const std::optional<Tensor>& bias, int64_t activation_bits);
DequantiseRowsParams dequantise_rows_params(const Tensor& groups, int64_t block_format, int64_t num_rows,
                                            int64_t num_columns, const Tensor& row_ids);

GroupBlocksParams group_blocks_params(const Tensor& blocks, int64_t block_format, const Tensor& groups);

AddLoraParams add_lora_params(const Tensor& out, const Tensor& x, const Tensor& row_ids, const Tensor& row_starts,
                              const Tensor& parts, const Tensor& scales);

CopyBlocksParams copy_blocks_params(const Tensor& k_cache, const Tensor& v_cache, const Tensor& block_pairs);

}  // namespace cudaprefill::ops
