#include "csrc/emu/backend.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "csrc/cuda/checks.h"
#include "csrc/cuda/kernels.h"
#include "csrc/emu/device_memory.h"
#include "csrc/emu/machine.h"

namespace cudaprefill::emu {
namespace {

int64_t matrix_span(int64_t rows, int64_t stride, int64_t columns) {
  return rows == 0 ? 0 : (rows - 1) * stride + columns;
}

// The device for one call. Its workspace starts as NaN, as nothing may be read there before it is written.
//
// Whatever an op is given may have been made by the kernel before it in the stream. Where kernels may begin before that
// one is complete, there is such a kernel: it lets the next one begin, and writes all tensors of the call only then.
class EmulatedDevice : public cuda::Device {
 public:
  ~EmulatedDevice() override { DeviceMemory::instance().clear(); }
  cudaStream_t stream() override { return nullptr; }
  int num_multiprocessors() override { return Machine::instance().num_multiprocessors(); }
  int compute_capability() override { return Machine::instance().compute_capability(); }
  int64_t l2_bytes() override { return EmulatedBackend::l2_bytes; }
  cuda::PrefillKernel wanted_prefill_kernel() override { return EmulatedBackend::wanted_prefill_kernel; }
  cuda::DecodeKernel wanted_decode_kernel() override { return EmulatedBackend::wanted_decode_kernel; }
  void* workspace(size_t bytes) override {
    constexpr int kNaNByte = 0xff;
    workspaces_.push_back(std::make_unique_for_overwrite<std::byte[]>(bytes));
    std::memset(workspaces_.back().get(), kNaNByte, bytes);
    return DeviceMemory::instance().expose("the workspace", workspaces_.back().get(), bytes, Access::kReadWrite);
  }

  // The launches of an op, and the wait for them. Raises what the op raises, and Fault.
  void run(const std::function<void()>& op) {
    Machine& machine = Machine::instance();
    auto& memory = DeviceMemory::instance();
    constexpr uint64_t kMostBytes = uint64_t{1} << 28;  // more is what tests of far offsets have, and hardly touch
    std::optional<DeviceMemory::Contents> given;
    if (machine.launches_are_programmatic() && memory.bytes() <= kMostBytes) {
      given.emplace(memory.take_contents());
      machine.precede_with([&] {
        machine.let_next_kernel_begin();
        given->put_back();
      });
    }
    try {
      op();
    } catch (...) {
      machine.drop_launches();
      throw;
    }
    machine.synchronise();
  }

  template <class T>
  void expose(const char* name, T*& pointer, int64_t elements, int element_bytes, Access access) {
    pointer = DeviceMemory::instance().expose(name, pointer, static_cast<uint64_t>(elements * element_bytes), access);
  }

  // Only what a strided view spans, from its first element to its last.
  void expose(const char* name, HeadRows& rows, int64_t tokens, int heads, int head_size, DType dtype, Access access) {
    const bool empty = tokens == 0 || heads == 0;
    const int64_t span = empty ? 0 : (tokens - 1) * rows.token_stride + (heads - 1) * rows.head_stride + head_size;
    expose(name, rows.data, span, element_bytes(dtype), access);
  }

  template <class Params>
  void expose_caches(Params& params, Access access) {
    const auto one = [&](const char* name, PagedCache& cache) {
      const bool empty = cache.num_blocks == 0 || params.num_kv_heads == 0;
      const int64_t span = empty ? 0
                                 : (cache.num_blocks - 1) * cache.block_stride +
                                       (params.num_kv_heads - 1) * cache.head_stride +
                                       (params.block_size - 1) * cache.slot_stride + params.head_size;
      expose(name, cache.data, span, element_bytes(params.kv_dtype), access);
      expose("scales", cache.scales, params.num_kv_heads, sizeof(float), Access::kRead);
    };
    one("k_cache", params.k_cache);
    one("v_cache", params.v_cache);
  }

  // What prefill and decode attention share.
  template <class Params>
  void expose_attention(Params& params, int64_t tokens) {
    expose("q", params.q, tokens, params.num_q_heads, params.head_size, params.dtype, Access::kRead);
    expose("out", params.out, tokens, params.num_q_heads, params.head_size, params.dtype, Access::kReadWrite);
    expose("block_table", params.block_table,
           matrix_span(params.num_requests, params.block_table_stride, params.max_blocks), sizeof(int32_t),
           Access::kRead);
    expose("context_lens", params.context_lens, params.num_requests, sizeof(int32_t), Access::kRead);
    expose_caches(params, Access::kRead);
  }

 private:
  std::vector<std::unique_ptr<std::byte[]>> workspaces_;
};

}  // namespace

void EmulatedBackend::write_kv(WriteKvParams params) {
  EmulatedDevice device;
  device.expose("k", params.k, params.num_tokens, params.num_kv_heads, params.head_size, params.dtype, Access::kRead);
  device.expose("v", params.v, params.num_tokens, params.num_kv_heads, params.head_size, params.dtype, Access::kRead);
  device.expose("slot_mapping", params.slot_mapping, params.num_tokens, sizeof(int64_t), Access::kRead);
  device.expose_caches(params, Access::kReadWrite);
  device.run([&] { cuda::write_kv(params, device); });
}

void EmulatedBackend::rope_write_kv(RopeWriteKvParams params) {
  EmulatedDevice device;
  const int bytes = element_bytes(params.dtype);
  device.expose("q", params.q, params.num_tokens, params.num_q_heads, params.head_size, params.dtype,
                Access::kReadWrite);
  device.expose("k", params.k, params.num_tokens, params.num_kv_heads, params.head_size, params.dtype, Access::kRead);
  device.expose("v", params.v, params.num_tokens, params.num_kv_heads, params.head_size, params.dtype, Access::kRead);
  device.expose("cos_sin", params.cos_sin, params.max_positions * params.rotary_dim, sizeof(float), Access::kRead);
  device.expose("position_ids", params.position_ids, params.num_tokens, sizeof(int64_t), Access::kRead);
  device.expose("slot_mapping", params.slot_mapping, params.num_tokens, sizeof(int64_t), Access::kRead);
  device.expose("q_norm", params.q_norm, params.head_size, bytes, Access::kRead);
  device.expose("k_norm", params.k_norm, params.head_size, bytes, Access::kRead);
  device.expose_caches(params, Access::kReadWrite);
  device.run([&] { cuda::rope_write_kv(params, device); });
}

void EmulatedBackend::rms_norm(RmsNormParams params) {
  EmulatedDevice device;
  const int bytes = element_bytes(params.dtype);
  const int64_t columns = params.hidden_size;
  device.expose("x", params.x, matrix_span(params.num_rows, params.x_stride, columns), bytes, Access::kRead);
  device.expose("residual", params.residual, matrix_span(params.num_rows, params.residual_stride, columns), bytes,
                Access::kReadWrite);
  device.expose("weight", params.weight, columns, bytes, Access::kRead);
  device.expose("out", params.out, matrix_span(params.num_rows, params.out_stride, columns), bytes, Access::kReadWrite);
  device.run([&] { cuda::rms_norm(params, device); });
}

void EmulatedBackend::silu_and_mul(SiluAndMulParams params) {
  EmulatedDevice device;
  const int bytes = element_bytes(params.dtype);
  const int64_t columns = params.size;
  device.expose("x", params.x, matrix_span(params.num_rows, params.x_stride, 2 * columns), bytes, Access::kRead);
  device.expose("out", params.out, matrix_span(params.num_rows, params.out_stride, columns), bytes, Access::kReadWrite);
  device.run([&] { cuda::silu_and_mul(params, device); });
}

void EmulatedBackend::gelu_tanh_and_mul(GeluTanhAndMulParams params) {
  EmulatedDevice device;
  const int bytes = element_bytes(params.dtype);
  const int64_t columns = params.size;
  device.expose("x", params.x, matrix_span(params.num_rows, params.x_stride, 2 * columns), bytes, Access::kRead);
  device.expose("out", params.out, matrix_span(params.num_rows, params.out_stride, columns), bytes, Access::kReadWrite);
  device.run([&] { cuda::gelu_tanh_and_mul(params, device); });
}

void EmulatedBackend::expert_mlp(ExpertMlpParams params) {
  EmulatedDevice device;
  const int bytes = element_bytes(params.dtype), weight_bytes = element_bytes(params.gate_up.dtype);
  const int64_t hidden = params.hidden_size, inner = params.inner_size, experts = params.num_experts;
  device.expose("x", params.x, matrix_span(params.num_tokens, params.x_stride, hidden), bytes, Access::kRead);
  device.expose("router_logits", params.router_logits, matrix_span(params.num_tokens, params.logits_stride, experts),
                bytes, Access::kRead);
  device.expose("gate_up", params.gate_up.data, matrix_span(experts * 2 * inner, params.gate_up.stride, hidden),
                weight_bytes, Access::kRead);
  device.expose("down", params.down.data, matrix_span(experts * hidden, params.down.stride, inner), weight_bytes,
                Access::kRead);
  device.expose("out", params.out, matrix_span(params.num_tokens, params.out_stride, hidden), bytes,
                Access::kReadWrite);
  device.run([&] { cuda::expert_mlp(params, device); });
}

void EmulatedBackend::copy_blocks(CopyBlocksParams params) {
  EmulatedDevice device;
  device.expose("block_pairs", params.block_pairs, 2 * params.num_pairs, sizeof(int64_t), Access::kRead);
  device.expose_caches(params, Access::kReadWrite);
  device.run([&] { cuda::copy_blocks(params, device); });
}

void EmulatedBackend::add_lora(AddLoraParams params) {
  EmulatedDevice device;
  const int bytes = element_bytes(params.dtype);
  // The table holds addresses of the host. The matrices of adapters without rows stay out of reach.
  std::vector<LoraPart> parts(params.parts, params.parts + int64_t{params.num_adapters} * params.num_parts);
  for (int32_t adapter = 0; adapter < params.num_adapters; ++adapter) {
    const bool has_rows = params.row_starts[adapter] < params.row_starts[adapter + 1];
    for (int32_t number = 0; number < params.num_parts; ++number) {
      LoraPart& part = parts[int64_t{adapter} * params.num_parts + number];
      const int64_t tiles = (part.num_outputs + kLoraTile - 1) / kLoraTile;
      const auto expose = [&](const char* name, int64_t& address, int64_t elements) {
        auto* data = reinterpret_cast<void*>(address);
        device.expose(name, data, has_rows ? elements : 0, bytes, Access::kRead);
        address = reinterpret_cast<int64_t>(data);
      };
      expose("a", part.a, part.rank * params.num_inputs);
      expose("b", part.b, tiles * part.rank * kLoraTile);
    }
  }
  params.parts = parts.data();
  device.expose("parts", params.parts, static_cast<int64_t>(parts.size()), sizeof(LoraPart), Access::kRead);
  device.expose("x", params.x, matrix_span(params.num_rows, params.x_stride, params.num_inputs), bytes, Access::kRead);
  device.expose("out", params.out, matrix_span(params.num_rows, params.out_stride, params.num_outputs), bytes,
                Access::kReadWrite);
  device.expose("row_ids", params.row_ids, params.num_row_ids, sizeof(int32_t), Access::kRead);
  device.expose("row_starts", params.row_starts, params.num_adapters + 1, sizeof(int32_t), Access::kRead);
  device.expose("scales", params.scales, int64_t{params.num_adapters} * params.num_parts, sizeof(float), Access::kRead);
  device.run([&] { cuda::add_lora(params, device); });
}

void EmulatedBackend::prefill_attention(PrefillAttentionParams params) {
  EmulatedDevice device;
  device.expose_attention(params, params.num_tokens);
  device.expose("cu_seqlens_q", params.cu_seqlens_q, params.num_requests + 1, sizeof(int32_t), Access::kRead);
  device.run([&] { cuda::prefill_attention(params, device); });
}

void EmulatedBackend::mixed_attention(PrefillAttentionParams params, int num_decodes) {
  EmulatedDevice device;
  device.expose_attention(params, params.num_tokens);
  device.expose("cu_seqlens_q", params.cu_seqlens_q, params.num_requests + 1, sizeof(int32_t), Access::kRead);
  device.run([&] { cuda::mixed_attention(params, num_decodes, device); });
}

void EmulatedBackend::decode_attention(DecodeAttentionParams params) {
  EmulatedDevice device;
  device.expose_attention(params, params.num_requests);
  device.run([&] { cuda::decode_attention(params, device); });
}

}  // namespace cudaprefill::emu
