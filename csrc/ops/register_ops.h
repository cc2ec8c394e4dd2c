// The bodies of the ops, once for all backends: check the arguments, allocate the output, run the kernel.
//
// A backend is a struct with one static function for each kernel, `static void write_kv(const WriteKvParams&)` and so
// on, which it hands to register_ops() from its own STABLE_TORCH_LIBRARY_IMPL.
#pragma once

#include <torch/csrc/stable/library.h>

#include <optional>

#include "csrc/ops/checks.h"
#include "csrc/ops/expert_checks.h"

namespace cudaprefill::ops {

// An uninitialised, contiguous [rows, columns] of the dtype and device of `like`.
Tensor empty_matrix(int64_t rows, int64_t columns, const Tensor& like);
Tensor empty_float_matrix(int64_t rows, int64_t columns, const Tensor& like);  // float32 on the device of `like`

template <class Backend>
struct Ops {
  static void write_kv(const Tensor& k, const Tensor& v, const Tensor& k_cache, const Tensor& v_cache,
                       const Tensor& slot_mapping, const std::optional<Tensor>& k_scale,
                       const std::optional<Tensor>& v_scale) {
    Backend::write_kv(write_kv_params(k, v, k_cache, v_cache, slot_mapping, {k_scale, v_scale}));
  }

  static void prefill_attention(const Tensor& q, const Tensor& k_cache, const Tensor& v_cache,
                                const Tensor& block_table, const Tensor& cu_seqlens_q, const Tensor& context_lens,
                                const Tensor& out, double scale, int64_t window, double softcap,
                                const std::optional<Tensor>& k_scale, const std::optional<Tensor>& v_scale) {
    Backend::prefill_attention(prefill_attention_params("prefill_attention", q, k_cache, v_cache, block_table,
                                                        cu_seqlens_q, context_lens, out, scale, window, softcap,
                                                        {k_scale, v_scale}));
  }

  static void mixed_attention(const Tensor& q, const Tensor& k_cache, const Tensor& v_cache, const Tensor& block_table,
                              const Tensor& cu_seqlens_q, const Tensor& context_lens, const Tensor& out,
                              int64_t num_decodes, double scale, int64_t window, double softcap,
                              const std::optional<Tensor>& k_scale, const std::optional<Tensor>& v_scale) {
    const PrefillAttentionParams params =
        prefill_attention_params("mixed_attention", q, k_cache, v_cache, block_table, cu_seqlens_q, context_lens, out,
                                 scale, window, softcap, {k_scale, v_scale});
    Backend::mixed_attention(params, num_decodes_of(params, num_decodes));
  }

  static void decode_attention(const Tensor& q, const Tensor& k_cache, const Tensor& v_cache, const Tensor& block_table,
                               const Tensor& context_lens, const Tensor& out, double scale, int64_t window,
                               double softcap, const std::optional<Tensor>& k_scale,
                               const std::optional<Tensor>& v_scale) {
    Backend::decode_attention(decode_attention_params(q, k_cache, v_cache, block_table, context_lens, out, scale,
                                                      window, softcap, {k_scale, v_scale}));
  }

  static void rope_write_kv(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& cos_sin,
                            const Tensor& position_ids, const Tensor& k_cache, const Tensor& v_cache,
                            const Tensor& slot_mapping, const std::optional<Tensor>& q_norm,
                            const std::optional<Tensor>& k_norm, double norm_eps, const std::optional<Tensor>& k_scale,
                            const std::optional<Tensor>& v_scale) {
    Backend::rope_write_kv(rope_write_kv_params(q, k, v, cos_sin, position_ids, k_cache, v_cache, slot_mapping, q_norm,
                                                k_norm, norm_eps, {k_scale, v_scale}));
  }

  static Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps) {
    return run_rms_norm(x, rms_norm_params(x, weight, eps));
  }

  static Tensor add_rms_norm(const Tensor& x, const Tensor& residual, const Tensor& weight, double eps) {
    return run_rms_norm(x, add_rms_norm_params(x, residual, weight, eps));
  }

  static Tensor silu_and_mul(const Tensor& x) { return run_gated(Backend::silu_and_mul, x, silu_and_mul_params(x)); }

  static Tensor gelu_tanh_and_mul(const Tensor& x) {
    return run_gated(Backend::gelu_tanh_and_mul, x, gelu_tanh_and_mul_params(x));
  }

  static Tensor expert_mlp(const Tensor& x, const Tensor& router_logits, const Tensor& gate_up, const Tensor& down,
                           int64_t num_chosen, bool renormalise) {
    return run_experts(x, expert_mlp_params(x, router_logits, gate_up, down, num_chosen, renormalise));
  }

  static Tensor run_experts(const Tensor& x, ExpertMlpParams params) {
    Tensor out = empty_matrix(params.num_tokens, params.hidden_size, x);
    params.out = out.data_ptr();
    params.out_stride = params.hidden_size;
    Backend::expert_mlp(params);
    return out;
  }

  static void copy_blocks(const Tensor& k_cache, const Tensor& v_cache, const Tensor& block_pairs) {
    Backend::copy_blocks(copy_blocks_params(k_cache, v_cache, block_pairs));
  }

  static void add_lora(const Tensor& out, const Tensor& x, const Tensor& row_ids, const Tensor& row_starts,
                       const Tensor& parts, const Tensor& scales) {
    Backend::add_lora(add_lora_params(out, x, row_ids, row_starts, parts, scales));
  }

 private:
  template <class Kernel>
  static Tensor run_gated(const Kernel& kernel, const Tensor& x, GatedParams params) {
    Tensor out = empty_matrix(params.num_rows, params.size, x);
    params.out = out.data_ptr();
    params.out_stride = params.size;
    kernel(params);
    return out;
  }

  static Tensor run_rms_norm(const Tensor& x, RmsNormParams params) {
    Tensor out = empty_matrix(params.num_rows, params.hidden_size, x);
    params.out = out.data_ptr();
    params.out_stride = params.hidden_size;
    Backend::rms_norm(params);
    return out;
  }
};

// The ops that every backend has.
template <class Backend>
void register_ops(torch::stable::detail::StableLibrary& m) {
  m.impl("write_kv", TORCH_BOX(&Ops<Backend>::write_kv));
  m.impl("prefill_attention", TORCH_BOX(&Ops<Backend>::prefill_attention));
  m.impl("decode_attention", TORCH_BOX(&Ops<Backend>::decode_attention));
  m.impl("mixed_attention", TORCH_BOX(&Ops<Backend>::mixed_attention));
  m.impl("rope_write_kv", TORCH_BOX(&Ops<Backend>::rope_write_kv));
  m.impl("rms_norm", TORCH_BOX(&Ops<Backend>::rms_norm));
  m.impl("add_rms_norm", TORCH_BOX(&Ops<Backend>::add_rms_norm));
  m.impl("silu_and_mul", TORCH_BOX(&Ops<Backend>::silu_and_mul));
  m.impl("gelu_tanh_and_mul", TORCH_BOX(&Ops<Backend>::gelu_tanh_and_mul));
  m.impl("expert_mlp", TORCH_BOX(&Ops<Backend>::expert_mlp));
  m.impl("copy_blocks", TORCH_BOX(&Ops<Backend>::copy_blocks));
  m.impl("add_lora", TORCH_BOX(&Ops<Backend>::add_lora));
}

}  // namespace cudaprefill::ops
