// The CPU kernels, registered as the CPU backend of the ops.
#include <torch/csrc/stable/library.h>

#include <string>

#include "csrc/cpu/dispatch.h"
#include "csrc/cpu/expert_mlp.h"
#include "csrc/cpu/kernels.h"
#include "csrc/cpu/thread_team.h"
#include "csrc/ops/mixed_step.h"
#include "csrc/ops/register_ops.h"

namespace cudaprefill::cpu {
namespace {

struct CpuBackend {
  static void write_kv(const WriteKvParams& params) { cpu::write_kv(params); }
  static void prefill_attention(const PrefillAttentionParams& params) { cpu::prefill_attention(params); }
  static void decode_attention(const DecodeAttentionParams& params) { cpu::decode_attention(params); }
  static void mixed_attention(const PrefillAttentionParams& params, int num_decodes) {
    cpu::decode_attention(decodes_of(params, num_decodes));
    cpu::prefill_attention(chunks_of(params, num_decodes));
  }
  static void rope_write_kv(const RopeWriteKvParams& params) { cpu::rope_write_kv(params); }
  static void rms_norm(const RmsNormParams& params) { cpu::rms_norm(params); }
  static void silu_and_mul(const SiluAndMulParams& params) { cpu::silu_and_mul(params); }
  static void gelu_tanh_and_mul(const GeluTanhAndMulParams& params) { cpu::gelu_tanh_and_mul(params); }
  static void expert_mlp(const ExpertMlpParams& params) { cpu::expert_mlp(params); }
  static void copy_blocks(const CopyBlocksParams& params) { cpu::copy_blocks(params); }
  static void add_lora(const AddLoraParams& params) { cpu::add_lora(params); }
};

ops::Tensor run_linear(LinearParams params, const ops::Tensor& x) {
  ops::Tensor out = ops::empty_matrix(params.num_rows, params.num_outputs, x);
  params.out = static_cast<float*>(out.data_ptr());
  params.out_stride = params.num_outputs;
  cpu::linear(params);
  return out;
}

ops::Tensor linear_op(const ops::Tensor& x, const ops::Tensor& weight, const std::optional<ops::Tensor>& bias) {
  return run_linear(ops::linear_params(x, weight, bias), x);
}

ops::Tensor linear_blocks_op(const ops::Tensor& x, const ops::Tensor& groups, int64_t block_format, int64_t num_outputs,
                             const std::optional<ops::Tensor>& bias, int64_t activation_bits) {
  return run_linear(ops::linear_blocks_params(x, groups, block_format, num_outputs, bias, activation_bits), x);
}

ops::Tensor expert_mlp_blocks_op(const ops::Tensor& x, const ops::Tensor& router_logits, const ops::Tensor& gate_up,
                                 int64_t gate_up_format, const ops::Tensor& down, int64_t down_format,
                                 int64_t inner_size, int64_t num_chosen, bool renormalise, int64_t activation_bits) {
  return ops::Ops<CpuBackend>::run_experts(
      x, ops::expert_mlp_blocks_params(x, router_logits, gate_up, gate_up_format, down, down_format, inner_size,
                                       num_chosen, renormalise, activation_bits));
}

ops::Tensor run_gated_linear(GatedLinearParams params, const ops::Tensor& x) {
  const int64_t inner_size = params.gate_up.num_outputs / 2;
  ops::Tensor out = ops::empty_matrix(params.gate_up.num_rows, inner_size, x);
  params.out = static_cast<float*>(out.data_ptr());
  params.out_stride = inner_size;
  cpu::gated_linear(params);
  return out;
}

ops::Tensor gated_linear_op(const ops::Tensor& x, const ops::Tensor& gate_up, const std::string& activation,
                            const std::optional<ops::Tensor>& bias) {
  return run_gated_linear(ops::gated_linear_params(x, gate_up, activation, bias), x);
}

ops::Tensor gated_linear_blocks_op(const ops::Tensor& x, const ops::Tensor& groups, int64_t block_format,
                                   int64_t inner_size, const std::string& activation,
                                   const std::optional<ops::Tensor>& bias, int64_t activation_bits) {
  return run_gated_linear(
      ops::gated_linear_blocks_params(x, groups, block_format, inner_size, activation, bias, activation_bits), x);
}

void group_blocks_op(const ops::Tensor& blocks, int64_t block_format, const ops::Tensor& groups) {
  cpu::group_blocks(ops::group_blocks_params(blocks, block_format, groups));
}

ops::Tensor dequantise_rows_op(const ops::Tensor& groups, int64_t block_format, int64_t num_rows, int64_t num_columns,
                               const ops::Tensor& row_ids) {
  DequantiseRowsParams params = ops::dequantise_rows_params(groups, block_format, num_rows, num_columns, row_ids);
  ops::Tensor out = ops::empty_float_matrix(params.num_rows, params.num_columns, groups);
  params.out = static_cast<float*>(out.data_ptr());
  cpu::dequantise_rows(params);
  return out;
}

std::string cpu_isa_op() { return isa_level().name; }

}  // namespace
}  // namespace cudaprefill::cpu

STABLE_TORCH_LIBRARY_IMPL(cudaprefill, CPU, m) {
  cudaprefill::ops::register_ops<cudaprefill::cpu::CpuBackend>(m);
  m.impl("linear", TORCH_BOX(&cudaprefill::cpu::linear_op));
  m.impl("gated_linear", TORCH_BOX(&cudaprefill::cpu::gated_linear_op));
  m.impl("gated_linear_blocks", TORCH_BOX(&cudaprefill::cpu::gated_linear_blocks_op));
  m.impl("group_blocks", TORCH_BOX(&cudaprefill::cpu::group_blocks_op));
  m.impl("linear_blocks", TORCH_BOX(&cudaprefill::cpu::linear_blocks_op));
  m.impl("expert_mlp_blocks", TORCH_BOX(&cudaprefill::cpu::expert_mlp_blocks_op));
  m.impl("dequantise_rows", TORCH_BOX(&cudaprefill::cpu::dequantise_rows_op));
}

STABLE_TORCH_LIBRARY_IMPL(cudaprefill, CompositeExplicitAutograd, m) {
  m.impl("cpu_isa", TORCH_BOX(&cudaprefill::cpu::cpu_isa_op));
  m.impl("num_threads", TORCH_BOX(&cudaprefill::cpu::num_threads));
  m.impl("set_num_threads", TORCH_BOX(&cudaprefill::cpu::set_num_threads));
}
