// write_kv: one block a token, one thread for each 16 bytes of a K row and the same 16 bytes of the V row.
#include <cuda_runtime.h>

#include <launch.cuh>
#include <ptx/memory.cuh>

#include "csrc/cuda/checks.h"
#include "csrc/cuda/kernels.h"
#include "csrc/cuda/paged.cuh"

namespace cudaprefill::cuda {
namespace {

constexpr int kThreads = 128;

struct LaunchParams {
  WriteKvParams op;
  int element_bytes;
};

// The bytes only move, so one kernel serves all formats.
__global__ void __launch_bounds__(kThreads) write_kv_kernel(const __grid_constant__ LaunchParams launch) {
  const WriteKvParams& params = launch.op;
  const int64_t token = blockIdx.x;
  const int64_t slot = ptx::load_global(params.slot_mapping + token);
  if (slot < 0) return;

  const int head_bytes = params.head_size * launch.element_bytes;
  const int vectors_per_head = head_bytes / kVectorBytes;
  const auto move = [&](const HeadRows& rows, const PagedCache& cache, int head, int byte) {
    const auto* from = static_cast<const char*>(rows.data) +
                       (token * rows.token_stride + head * rows.head_stride) * launch.element_bytes + byte;
    auto* to = static_cast<char*>(cache.data) +
               slot_offset(cache, slot, params.block_size, head) * launch.element_bytes + byte;
    ptx::store_global(reinterpret_cast<uint4*>(to), ptx::load_global(reinterpret_cast<const uint4*>(from)));
  };
  for (int i = threadIdx.x; i < params.num_kv_heads * vectors_per_head; i += kThreads) {
    const int head = i / vectors_per_head;
    const int byte = (i - head * vectors_per_head) * kVectorBytes;
    move(params.k, params.k_cache, head, byte);
    move(params.v, params.v_cache, head, byte);
  }
}

}  // namespace

void write_kv(const WriteKvParams& params, Device& device) {
  constexpr const char* op = "write_kv";
  require_same_dtype(op, params.dtype, params.kv_dtype);
  require_whole_vectors(op, "head_size", params.head_size, params.dtype);
  require_alignment(op, "k", params.k, params.dtype);
  require_alignment(op, "v", params.v, params.dtype);
  require_alignment(op, "k_cache", params.k_cache, params.dtype);
  require_alignment(op, "v_cache", params.v_cache, params.dtype);
  if (params.num_tokens == 0) return;
  const LaunchShape shape{dim3{static_cast<unsigned>(params.num_tokens), 1, 1}, kThreads};
  launch(op, write_kv_kernel, shape, LaunchParams{params, element_bytes(params.dtype)}, device.stream());
}

}  // namespace cudaprefill::cuda
