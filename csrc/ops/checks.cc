#include "csrc/ops/checks.h"

#include <algorithm>
#include <cstdint>
#include <limits>

namespace cudaprefill::ops {
namespace {

constexpr int64_t kAny = TensorArg::kAny;

// Counts that kernels hold in 32 bits.
int32_t to_int32(const char* op, const char* name, int64_t value) {
  if (value > std::numeric_limits<int32_t>::max()) {
    fail(op, ": ", name, " must be at most ", std::numeric_limits<int32_t>::max(), ", got ", value);
  }
  return static_cast<int32_t>(value);
}

HeadRows head_rows(const TensorArg& rows) { return {rows.data(), rows.stride(0), rows.stride(1)}; }

PagedCache paged_cache(const TensorArg& cache) {
  return {cache.data(), cache.size(0), cache.stride(0), cache.stride(1), cache.stride(2), nullptr};
}

// The two caches of a layer, checked against each other.
struct CachePair {
  TensorArg k, v;
  DType dtype;

  CachePair(const char* op, const Tensor& k_cache, const Tensor& v_cache)
      : k(op, "k_cache", k_cache), v(op, "v_cache", v_cache) {
    dtype = k.expect_shape("[num_blocks, num_kv_heads, block_size, head_size]", {kAny, kAny, kAny, kAny})
                .expect_contiguous_last_dim()
                .expect_cache_dtype();
    v.expect_shape("the shape of k_cache", {k.size(0), k.size(1), k.size(2), k.size(3)})
        .expect_dtype_of(k)
        .expect_device_of(k)
        .expect_contiguous_last_dim();
    if (block_size() == 0) fail(op, ": k_cache must have a block_size of at least 1, got 0");
  }

  int64_t num_kv_heads() const { return k.size(1); }
  int64_t block_size() const { return k.size(2); }
  int64_t head_size() const { return k.size(3); }

  // The caches into the Params of an op, with the scales that float8 has and no other dtype.
  template <class Params>
  void fill(const char* op, Params& params, const CacheScales& scales) const {
    params.k_cache = paged_cache(k);
    params.v_cache = paged_cache(v);
    params.k_cache.scales = scales_of(op, "k_scale", scales.k);
    params.v_cache.scales = scales_of(op, "v_scale", scales.v);
    params.num_kv_heads = to_int32(op, "num_kv_heads", num_kv_heads());
    params.head_size = to_int32(op, "head_size", head_size());
    params.block_size = to_int32(op, "block_size", block_size());
    params.kv_dtype = dtype;
  }

 private:
  const float* scales_of(const char* op, const char* name, const std::optional<Tensor>& scales) const {
    const bool needed = dtype == DType::kFloat8;
    if (needed && !scales) fail(op, ": ", name, " must be given with caches of float8_e4m3fn, got none");
    if (!needed && scales) fail(op, ": ", name, " must be given with caches of float8_e4m3fn alone, got one");
    if (!needed) return nullptr;
    const TensorArg of_heads(op, name, *scales);
    of_heads.expect_shape("[num_kv_heads]", {num_kv_heads()}).expect_float32().expect_device_of(k).expect_contiguous();
    return static_cast<const float*>(of_heads.data());
  }
};

void check_q_heads(const char* op, const TensorArg& q, const CachePair& caches) {
  if (caches.num_kv_heads() == 0 || q.size(1) % caches.num_kv_heads() != 0) {
    fail(op, ": q must have a multiple of the ", caches.num_kv_heads(), " heads of k_cache, got ", q.size(1));
  }
}

// What prefill and decode attention share.
template <class Params>
void fill_attention(const char* op, Params& params, const TensorArg& q, const CachePair& caches,
                    const TensorArg& block_table, const TensorArg& context_lens, const TensorArg& out, double scale,
                    int64_t window, double softcap, const CacheScales& scales) {
  params.dtype = q.expect_shape("[tokens, num_q_heads, head_size]", {kAny, kAny, caches.head_size()})
                     .expect_device_of(caches.k)
                     .expect_contiguous_last_dim()
                     .expect_floating();
  check_q_heads(op, q, caches);
  out.expect_shape("the shape of q", {q.size(0), q.size(1), q.size(2)})
      .expect_dtype_of(q)
      .expect_device_of(q)
      .expect_contiguous_last_dim();
  context_lens.expect_shape("[num_requests]", {kAny}).expect_int32().expect_device_of(q).expect_contiguous();
  block_table.expect_shape("[num_requests, max_blocks]", {context_lens.size(0), kAny})
      .expect_int32()
      .expect_device_of(q)
      .expect_contiguous_last_dim();
  if (window < 0) fail(op, ": window must be at least 0 (0 = all), got ", window);
  if (!(softcap >= 0)) fail(op, ": softcap must be at least 0 (0 = off), got ", softcap);

  params.q = head_rows(q);
  params.out = head_rows(out);
  caches.fill(op, params, scales);
  params.block_table = static_cast<const int32_t*>(block_table.data());
  params.context_lens = static_cast<const int32_t*>(context_lens.data());
  params.block_table_stride = block_table.stride(0);
  params.max_blocks = block_table.size(1);
  params.num_requests = to_int32(op, "num_requests", context_lens.size(0));
  params.num_q_heads = to_int32(op, "num_q_heads", q.size(1));
  params.window = static_cast<int32_t>(std::min<int64_t>(window, std::numeric_limits<int32_t>::max()));
  params.scale = static_cast<float>(scale);
  params.softcap = static_cast<float>(softcap);
}

RmsNormParams fill_rms_norm(const char* op, const TensorArg& x, const TensorArg& weight, double eps) {
  RmsNormParams params{};
  params.dtype = x.expect_shape("[rows, hidden_size]", {kAny, kAny}).expect_contiguous_last_dim().expect_floating();
  weight.expect_shape("[hidden_size]", {x.size(1)}).expect_dtype_of(x).expect_device_of(x).expect_contiguous();
  if (!(eps >= 0)) fail(op, ": eps must be at least 0, got ", eps);
  params.x = x.data();
  params.weight = weight.data();
  params.num_rows = x.size(0);
  params.x_stride = x.stride(0);
  params.hidden_size = to_int32(op, "hidden_size", x.size(1));
  params.epsilon = static_cast<float>(eps);
  return params;
}

GatedParams fill_gated(const char* op, const TensorArg& x) {
  GatedParams params{};
  params.dtype = x.expect_shape("[rows, 2 * size]", {kAny, kAny}).expect_contiguous_last_dim().expect_floating();
  if (x.size(1) % 2 != 0) fail(op, ": x must have an even number of columns, got ", x.size(1));
  params.x = x.data();
  params.num_rows = x.size(0);
  params.x_stride = x.stride(0);
  params.size = to_int32(op, "size", x.size(1) / 2);
  return params;
}

}  // namespace

WriteKvParams write_kv_params(const Tensor& k_tensor, const Tensor& v_tensor, const Tensor& k_cache,
                              const Tensor& v_cache, const Tensor& slot_mapping_tensor, const CacheScales& scales) {
  constexpr const char* op = "write_kv";
  const CachePair caches(op, k_cache, v_cache);
  const TensorArg k(op, "k", k_tensor), v(op, "v", v_tensor), slot_mapping(op, "slot_mapping", slot_mapping_tensor);
  WriteKvParams params{};
  params.dtype =
      k.expect_shape("[num_tokens, num_kv_heads, head_size]", {kAny, caches.num_kv_heads(), caches.head_size()})
          .expect_device_of(caches.k)
          .expect_contiguous_last_dim()
          .expect_floating();
  v.expect_shape("the shape of k", {k.size(0), k.size(1), k.size(2)})
      .expect_dtype_of(k)
      .expect_device_of(k)
      .expect_contiguous_last_dim();
  slot_mapping.expect_shape("[num_tokens]", {k.size(0)}).expect_int64().expect_device_of(k).expect_contiguous();

  params.k = head_rows(k);
  params.v = head_rows(v);
  caches.fill(op, params, scales);
  params.slot_mapping = static_cast<const int64_t*>(slot_mapping.data());
  params.num_tokens = k.size(0);
  return params;
}

PrefillAttentionParams prefill_attention_params(const char* op, const Tensor& q_tensor, const Tensor& k_cache,
                                                const Tensor& v_cache, const Tensor& block_table,
                                                const Tensor& cu_seqlens_q_tensor, const Tensor& context_lens_tensor,
                                                const Tensor& out, double scale, int64_t window, double softcap,
                                                const CacheScales& scales) {
  const CachePair caches(op, k_cache, v_cache);
  const TensorArg q(op, "q", q_tensor), context_lens(op, "context_lens", context_lens_tensor);
  const TensorArg cu_seqlens_q(op, "cu_seqlens_q", cu_seqlens_q_tensor);
  PrefillAttentionParams params{};
  fill_attention(op, params, q, caches, {op, "block_table", block_table}, context_lens, {op, "out", out}, scale, window,
                 softcap, scales);
  cu_seqlens_q.expect_shape("[num_requests + 1]", {context_lens.size(0) + 1})
      .expect_int32()
      .expect_device_of(q)
      .expect_contiguous();
  params.cu_seqlens_q = static_cast<const int32_t*>(cu_seqlens_q.data());
  params.num_tokens = q.size(0);
  return params;
}

int32_t num_decodes_of(const PrefillAttentionParams& params, int64_t num_decodes) {
  const int64_t most = std::min<int64_t>(params.num_requests, params.num_tokens);
  if (num_decodes < 0 || num_decodes > most) {
    fail("mixed_attention: num_decodes must be at least 0 and at most the number of requests and of rows of q, ", most,
         ", got ", num_decodes);
  }
  return static_cast<int32_t>(num_decodes);
}

DecodeAttentionParams decode_attention_params(const Tensor& q_tensor, const Tensor& k_cache, const Tensor& v_cache,
                                              const Tensor& block_table, const Tensor& context_lens_tensor,
                                              const Tensor& out, double scale, int64_t window, double softcap,
                                              const CacheScales& scales) {
  constexpr const char* op = "decode_attention";
  const CachePair caches(op, k_cache, v_cache);
  const TensorArg q(op, "q", q_tensor), context_lens(op, "context_lens", context_lens_tensor);
  DecodeAttentionParams params{};
  fill_attention(op, params, q, caches, {op, "block_table", block_table}, context_lens, {op, "out", out}, scale, window,
                 softcap, scales);
  context_lens.expect_shape("[num_requests], one for each row of q", {q.size(0)});
  return params;
}

RopeWriteKvParams rope_write_kv_params(const Tensor& q_tensor, const Tensor& k_tensor, const Tensor& v_tensor,
                                       const Tensor& cos_sin_tensor, const Tensor& position_ids_tensor,
                                       const Tensor& k_cache, const Tensor& v_cache, const Tensor& slot_mapping_tensor,
                                       const std::optional<Tensor>& q_norm_tensor,
                                       const std::optional<Tensor>& k_norm_tensor, double norm_eps,
                                       const CacheScales& scales) {
  constexpr const char* op = "rope_write_kv";
  const CachePair caches(op, k_cache, v_cache);
  const TensorArg q(op, "q", q_tensor), k(op, "k", k_tensor), v(op, "v", v_tensor);
  const TensorArg cos_sin(op, "cos_sin", cos_sin_tensor), position_ids(op, "position_ids", position_ids_tensor);
  const TensorArg slot_mapping(op, "slot_mapping", slot_mapping_tensor);
  RopeWriteKvParams params{};
  params.dtype = q.expect_shape("[num_tokens, num_q_heads, head_size]", {kAny, kAny, caches.head_size()})
                     .expect_device_of(caches.k)
                     .expect_contiguous_last_dim()
                     .expect_floating();
  check_q_heads(op, q, caches);
  k.expect_shape("[num_tokens, num_kv_heads, head_size]", {q.size(0), caches.num_kv_heads(), caches.head_size()})
      .expect_dtype_of(q)
      .expect_device_of(q)
      .expect_contiguous_last_dim();
  v.expect_shape("the shape of k", {k.size(0), k.size(1), k.size(2)})
      .expect_dtype_of(q)
      .expect_device_of(q)
      .expect_contiguous_last_dim();
  cos_sin.expect_shape("[max_positions, rotary_dim]", {kAny, kAny})
      .expect_float32()
      .expect_device_of(q)
      .expect_contiguous();
  const int64_t rotary_dim = cos_sin.size(1);
  if (rotary_dim % 2 != 0 || rotary_dim > caches.head_size()) {
    fail(op, ": cos_sin must have an even rotary_dim of at most the head_size ", caches.head_size(), ", got ",
         rotary_dim);
  }
  position_ids.expect_shape("[num_tokens]", {q.size(0)}).expect_int64().expect_device_of(q).expect_contiguous();
  slot_mapping.expect_shape("[num_tokens]", {q.size(0)}).expect_int64().expect_device_of(q).expect_contiguous();
  const auto norm_weight = [&](const char* name, const std::optional<Tensor>& weight) -> const void* {
    if (!weight) return nullptr;
    return TensorArg(op, name, *weight)
        .expect_shape("[head_size]", {caches.head_size()})
        .expect_dtype_of(q)
        .expect_device_of(q)
        .expect_contiguous()
        .data();
  };
  params.q_norm = norm_weight("q_norm", q_norm_tensor);
  params.k_norm = norm_weight("k_norm", k_norm_tensor);
  if (!(norm_eps >= 0)) fail(op, ": norm_eps must be at least 0, got ", norm_eps);

  params.q = head_rows(q);
  params.k = head_rows(k);
  params.v = head_rows(v);
  caches.fill(op, params, scales);
  params.cos_sin = static_cast<const float*>(cos_sin.data());
  params.position_ids = static_cast<const int64_t*>(position_ids.data());
  params.slot_mapping = static_cast<const int64_t*>(slot_mapping.data());
  params.norm_epsilon = static_cast<float>(norm_eps);
  params.num_tokens = q.size(0);
  params.max_positions = cos_sin.size(0);
  params.num_q_heads = to_int32(op, "num_q_heads", q.size(1));
  params.rotary_dim = to_int32(op, "rotary_dim", rotary_dim);
  return params;
}

RmsNormParams rms_norm_params(const Tensor& x, const Tensor& weight, double eps) {
  constexpr const char* op = "rms_norm";
  return fill_rms_norm(op, {op, "x", x}, {op, "weight", weight}, eps);
}

RmsNormParams add_rms_norm_params(const Tensor& x_tensor, const Tensor& residual_tensor, const Tensor& weight,
                                  double eps) {
  constexpr const char* op = "add_rms_norm";
  const TensorArg x(op, "x", x_tensor), residual(op, "residual", residual_tensor);
  RmsNormParams params = fill_rms_norm(op, x, {op, "weight", weight}, eps);
  residual.expect_shape("the shape of x", {x.size(0), x.size(1)})
      .expect_dtype_of(x)
      .expect_device_of(x)
      .expect_contiguous_last_dim();
  params.residual = residual.data();
  params.residual_stride = residual.stride(0);
  return params;
}

SiluAndMulParams silu_and_mul_params(const Tensor& x) {
  constexpr const char* op = "silu_and_mul";
  return fill_gated(op, {op, "x", x});
}

GeluTanhAndMulParams gelu_tanh_and_mul_params(const Tensor& x) {
  constexpr const char* op = "gelu_tanh_and_mul";
  return fill_gated(op, {op, "x", x});
}

CopyBlocksParams copy_blocks_params(const Tensor& k_cache, const Tensor& v_cache, const Tensor& block_pairs_tensor) {
  constexpr const char* op = "copy_blocks";
  const CachePair caches(op, k_cache, v_cache);
  const TensorArg block_pairs(op, "block_pairs", block_pairs_tensor);
  block_pairs.expect_shape("[num_pairs, 2]", {kAny, 2}).expect_int64().expect_device_of(caches.k).expect_contiguous();
  CopyBlocksParams params{};
  params.k_cache = paged_cache(caches.k);
  params.v_cache = paged_cache(caches.v);
  params.block_pairs = static_cast<const int64_t*>(block_pairs.data());
  params.num_pairs = block_pairs.size(0);
  params.num_kv_heads = to_int32(op, "num_kv_heads", caches.num_kv_heads());
  params.head_size = to_int32(op, "head_size", caches.head_size());
  params.block_size = to_int32(op, "block_size", caches.block_size());
  params.kv_dtype = caches.dtype;
  return params;
}

}  // namespace cudaprefill::ops
