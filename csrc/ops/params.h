// One plain struct for each kernel: what a launch needs, and nothing of torch. The argument checks fill it from
// tensors; the CPU kernels, the CUDA kernels and their emulation read it. Strides count elements, never bytes, and are
// 64-bit, for a pool of 140,000 blocks overruns 32 bits. The innermost dimension (head_size) is always contiguous.
#pragma once

#include <cstdint>

namespace cudaprefill {

enum class DType : int32_t { kFloat32, kBFloat16, kFloat16, kFloat8 };  // kFloat8: e4m3, of caches alone

constexpr int element_bytes(DType dtype) { return dtype == DType::kFloat32 ? 4 : dtype == DType::kFloat8 ? 1 : 2; }

// K or V of one layer, laid out HND: [num_blocks, num_kv_heads, block_size, head_size].
struct PagedCache {
  void* data;
  int64_t num_blocks;
  int64_t block_stride;
  int64_t head_stride;
  int64_t slot_stride;
  const float* scales;  // [num_kv_heads]: what the numbers of a head are multiplied by; kFloat8 alone, else null
};

// [num_tokens, num_heads, head_size]; a view into a fused qkv row is welcome, so the token stride is free.
struct HeadRows {
  void* data;
  int64_t token_stride;
  int64_t head_stride;
};

struct PrefillAttentionParams {
  HeadRows q, out;
  PagedCache k_cache, v_cache;
  const int32_t* block_table;  // [num_requests, max_blocks]; entries past ceil(context_len / block_size) are never read
  const int32_t* cu_seqlens_q;  // [num_requests + 1], offsets into the rows of q; the first need not be 0
  const int32_t* context_lens;  // [num_requests], cached plus new tokens
  int64_t block_table_stride;
  int64_t num_tokens;  // rows of q and out
  int64_t max_blocks;  // columns of block_table
  int32_t num_requests;
  int32_t num_q_heads, num_kv_heads, head_size, block_size;
  int32_t window;  // keys that a query sees, itself included; 0 = all
  float scale;
  float softcap;   // 0 = off
  DType dtype;     // of q and out
  DType kv_dtype;  // of the caches
};

struct DecodeAttentionParams {
  HeadRows q, out;  // one row a request
  PagedCache k_cache, v_cache;
  const int32_t* block_table;
  const int32_t* context_lens;
  int64_t block_table_stride;
  int64_t max_blocks;
  int32_t num_requests;
  int32_t num_q_heads, num_kv_heads, head_size, block_size;
  int32_t window;
  float scale;
  float softcap;
  DType dtype;
  DType kv_dtype;
};

struct WriteKvParams {
  HeadRows k, v;
  PagedCache k_cache, v_cache;
  const int64_t* slot_mapping;  // [num_tokens]; -1 = do not write
  int64_t num_tokens;
  int32_t num_kv_heads, head_size, block_size;
  DType dtype;
  DType kv_dtype;
};

// Optional RMSNorm of each head of q and k (Qwen3), then RoPE in the "rotate halves" form, then the KV write: one pass.
// q is rotated in place; k is only written to its slot.
struct RopeWriteKvParams {
  HeadRows q, k, v;
  PagedCache k_cache, v_cache;
  const float* cos_sin;         // [max_positions, rotary_dim]: cosines in the first half of a row, sines in the second
  const int64_t* position_ids;  // [num_tokens]
  const int64_t* slot_mapping;  // [num_tokens]
  const void* q_norm;           // [head_size] of dtype, or null
  const void* k_norm;
  float norm_epsilon;
  int64_t num_tokens;
  int64_t max_positions;
  int32_t num_q_heads, num_kv_heads, head_size, rotary_dim, block_size;
  DType dtype;
  DType kv_dtype;
};

// out = x / rms(x) * weight. With a residual (add_rms_norm): residual += x first, and the sum is what is normed.
struct RmsNormParams {
  const void* x;
  void* residual;  // null for rms_norm
  const void* weight;
  void* out;
  int64_t num_rows, x_stride, residual_stride, out_stride;
  int32_t hidden_size;
  float epsilon;
  DType dtype;
};

enum class Activation : int32_t { kSilu, kGeluTanh };

// out[t, i] = activation(x[t, i]) * x[t, size + i]
struct GatedParams {
  const void* x;
  void* out;
  int64_t num_rows, x_stride, out_stride;
  int32_t size;
  DType dtype;
};

using SiluAndMulParams = GatedParams;
using GeluTanhAndMulParams = GatedParams;

struct CopyBlocksParams {
  PagedCache k_cache, v_cache;
  const int64_t* block_pairs;  // [num_pairs, 2]: source, destination
  int64_t num_pairs;
  int32_t num_kv_heads, head_size, block_size;
  DType kv_dtype;
};

// Quantised weights in the blocks of GGUF files; csrc/cpu/gguf_blocks.h draws them. The values are GGUF's own.
enum class BlockFormat : int32_t { kNone = -1, kQ4_0 = 2, kQ4_1 = 3, kQ8_0 = 8, kQ4_K = 12, kQ6_K = 14 };

struct BlockShape {
  int32_t elements, bytes;
};

constexpr BlockShape block_shape(BlockFormat format) {
  switch (format) {
    case BlockFormat::kQ4_0:
      return {32, 18};
    case BlockFormat::kQ4_1:
      return {32, 20};
    case BlockFormat::kQ8_0:
      return {32, 34};
    case BlockFormat::kQ4_K:
      return {256, 144};
    case BlockFormat::kQ6_K:
      return {256, 210};
    case BlockFormat::kNone:
      break;
  }
  return {1, 0};
}

// The CPU kernels keep kGroupRows rows of blocks as one group, element by element side by side, which takes the bytes
// of the blocks but for Q4_K; csrc/cpu/block_groups.h draws it.
constexpr int64_t kGroupRows = 16;

constexpr int64_t group_bytes(BlockFormat format, int64_t num_inputs) {
  const BlockShape shape = block_shape(format);
  return kGroupRows * (num_inputs / shape.elements) * (format == BlockFormat::kQ4_K ? 148 : shape.bytes);
}

// groups = the rows of `blocks`, rearranged; the rows that the last group lacks become zeros
struct GroupBlocksParams {
  const uint8_t* blocks;                                     // [num_rows, bytes of num_inputs elements]
  uint8_t* groups;                                           // [num_rows / kGroupRows, rounded up, group_bytes]
  int64_t num_rows, num_inputs, block_stride, group_stride;  // bytes
  BlockFormat block_format;
};

// out = x @ weight^T + bias; x, bias and out are float32.
struct LinearParams {
  const float* x;
  const void* weight;  // [num_outputs, num_inputs] of weight_dtype, or groups of blocks
  const float* bias;   // [num_outputs], or null
  float* out;
  int64_t num_rows, num_inputs, num_outputs;
  int64_t x_stride, weight_stride, out_stride;  // weight_stride: elements, or bytes of a group
  DType weight_dtype;
  BlockFormat block_format = BlockFormat::kNone;
  int32_t activation_bits = 32;  // 8 or 16: x is rounded to these for each 32 inputs, and multiplied as integers
};

// The first half of a gated MLP: gate above up are the weight of a LinearParams, whose own `out` is nowhere.
//
//   out[t, i] = activation(product[t, i]) * product[t, num_outputs / 2 + i]
struct GatedLinearParams {
  LinearParams gate_up;
  float* out;  // [num_rows, num_outputs / 2]
  int64_t out_stride;
  Activation activation;
};

// A low-rank product of one adapter, as a row of a table of int64:
//
//   out[:, first_output .. first_output + num_outputs] += scale * (x @ a^T) @ b
//
// a: [rank, num_inputs]; b: [ceil(num_outputs / kLoraTile), rank, kLoraTile], the transpose of PEFT's B in tiles of
// outputs, so that it is read in one run. The outputs that fill up the last tile are never stored.
struct LoraPart {
  int64_t a, b;  // addresses
  int64_t rank;  // 0: the adapter leaves these outputs alone, and nothing else here counts
  int64_t first_output, num_outputs;
  int64_t dtype;  // a DType, of a and b; on a GPU that of the activations
};
constexpr int kLoraPartFields = sizeof(LoraPart) / sizeof(int64_t);
constexpr int kLoraTile = 64;
constexpr int kMaxLoraRank = 64;

// For each adapter the products of all its parts, on the rows row_ids[row_starts[adapter] .. row_starts[adapter + 1]].
struct AddLoraParams {
  const void* x;
  void* out;
  const int32_t* row_ids;     // [num_row_ids], no two the same
  const int32_t* row_starts;  // [num_adapters + 1], from 0 to num_row_ids
  const LoraPart* parts;      // [num_adapters, num_parts]
  const float* scales;        // [num_adapters, num_parts]
  int64_t num_rows, num_row_ids, num_inputs, num_outputs, x_stride, out_stride;
  int32_t num_adapters, num_parts;
  DType dtype;  // of x and out
};

// out[i] = row row_ids[i] of the matrix that `groups` hold
struct DequantiseRowsParams {
  const uint8_t* groups;
  const int64_t* row_ids;
  float* out;  // [num_rows, num_columns]
  int64_t num_rows, num_columns, num_matrix_rows, group_stride;
  BlockFormat block_format;
};

}  // namespace cudaprefill
