// The schemas of all ops. (a!) marks what an op writes. A backend registers its kernels with register_ops().
#include <torch/csrc/stable/library.h>

STABLE_TORCH_LIBRARY(cudaprefill, m) {
  m.def(
      "write_kv(Tensor k, Tensor v, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor slot_mapping, Tensor? k_scale=None, "
      "Tensor? v_scale=None) -> ()");
  m.def(
      "prefill_attention(Tensor q, Tensor k_cache, Tensor v_cache, Tensor block_table, Tensor cu_seqlens_q, "
      "Tensor context_lens, Tensor(a!) out, float scale, int window=0, float softcap=0.0, Tensor? k_scale=None, "
      "Tensor? v_scale=None) -> ()");
  m.def(
      "decode_attention(Tensor q, Tensor k_cache, Tensor v_cache, Tensor block_table, Tensor context_lens, "
      "Tensor(a!) out, float scale, int window=0, float softcap=0.0, Tensor? k_scale=None, Tensor? v_scale=None) -> "
      "()");
  m.def(
      "mixed_attention(Tensor q, Tensor k_cache, Tensor v_cache, Tensor block_table, Tensor cu_seqlens_q, "
      "Tensor context_lens, Tensor(a!) out, int num_decodes, float scale, int window=0, float softcap=0.0, Tensor? "
      "k_scale=None, Tensor? v_scale=None) -> ()");
  m.def(
      "rope_write_kv(Tensor(a!) q, Tensor k, Tensor v, Tensor cos_sin, Tensor position_ids, Tensor(b!) k_cache, "
      "Tensor(c!) v_cache, Tensor slot_mapping, Tensor? q_norm=None, Tensor? k_norm=None, float norm_eps=1e-06, "
      "Tensor? k_scale=None, Tensor? v_scale=None) -> ()");
  m.def("rms_norm(Tensor x, Tensor weight, float eps) -> Tensor");
  m.def("add_rms_norm(Tensor x, Tensor(a!) residual, Tensor weight, float eps) -> Tensor");
  m.def("silu_and_mul(Tensor x) -> Tensor");
  m.def("gelu_tanh_and_mul(Tensor x) -> Tensor");
  m.def(
      "expert_mlp(Tensor x, Tensor router_logits, Tensor gate_up, Tensor down, int num_chosen, bool renormalise) -> "
      "Tensor");
  m.def(
      "expert_mlp_blocks(Tensor x, Tensor router_logits, Tensor gate_up, int gate_up_format, Tensor down, "
      "int down_format, int inner_size, int num_chosen, bool renormalise, int activation_bits=32) -> Tensor");
  m.def("copy_blocks(Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor block_pairs) -> ()");
  m.def("add_lora(Tensor(a!) out, Tensor x, Tensor row_ids, Tensor row_starts, Tensor parts, Tensor scales) -> ()");
  m.def("linear(Tensor x, Tensor weight, Tensor? bias=None) -> Tensor");
  m.def("group_blocks(Tensor blocks, int block_format, Tensor(a!) groups) -> ()");
  m.def(
      "linear_blocks(Tensor x, Tensor groups, int block_format, int num_outputs, Tensor? bias=None, "
      "int activation_bits=32) -> Tensor");
  m.def("gated_linear(Tensor x, Tensor gate_up, str activation, Tensor? bias=None) -> Tensor");
  m.def(
      "gated_linear_blocks(Tensor x, Tensor groups, int block_format, int inner_size, str activation, "
      "Tensor? bias=None, int activation_bits=32) -> Tensor");
  m.def("dequantise_rows(Tensor groups, int block_format, int num_rows, int num_columns, Tensor row_ids) -> Tensor");
  m.def("cpu_isa() -> str");
  m.def("num_threads() -> int");
  m.def("set_num_threads(int count) -> ()");
}
