// write_kv: one block a token, one thread for each 16 bytes of a K row and the same 16 bytes of the V row.
#include <cuda_runtime.h>

#include <launch.cuh>
#include <ptx/memory.cuh>

#include "csrc/cuda/checks.h"
#include "csrc/cuda/kernels.h"
#include "csrc/cuda/kv_number.cuh"
#include "csrc/cuda/paged.cuh"
#include "csrc/cuda/stream_order.cuh"

namespace cudaprefill::cuda {
namespace {

constexpr int kThreads = 128;

struct LaunchParams {
  WriteKvParams op;
  int element_bytes;
};

// Where the bytes only move, one kernel serves all formats.
__global__ void __launch_bounds__(kThreads) write_kv_kernel(const __grid_constant__ LaunchParams launch) {
  const WriteKvParams& params = launch.op;
  const int64_t token = blockIdx.x;
  enter_stream();
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

// As above, into caches of Float8.
template <class Element>
__global__ void __launch_bounds__(kThreads) write_float8_kv_kernel(const __grid_constant__ LaunchParams launch) {
  const WriteKvParams& params = launch.op;
  const int64_t token = blockIdx.x;
  enter_stream();
  const int64_t slot = ptx::load_global(params.slot_mapping + token);
  if (slot < 0) return;

  constexpr int kVector = kVectorSize<Element>;
  const int vectors_per_head = params.head_size / kVector;
  const auto store = [&](const HeadRows& rows, const PagedCache& cache, int head, int element) {
    const auto* from =
        static_cast<const Element*>(rows.data) + token * rows.token_stride + head * rows.head_stride + element;
    auto* to = static_cast<Float8*>(cache.data) + slot_offset(cache, slot, params.block_size, head) + element;
    float numbers[kVector];
    load_vector(from, numbers);
    store_float8<Element>(to, numbers, 1 / scale_of<Float8>(cache, head));
  };
  for (int i = threadIdx.x; i < params.num_kv_heads * vectors_per_head; i += kThreads) {
    const int head = i / vectors_per_head;
    const int element = (i - head * vectors_per_head) * kVector;
    store(params.k, params.k_cache, head, element);
    store(params.v, params.v_cache, head, element);
  }
}

}  // namespace

void write_kv(const WriteKvParams& params, Device& device) {
  constexpr const char* op = "write_kv";
  require_cache_dtype(op, params.dtype, params.kv_dtype);
  require_whole_vectors(op, "head_size", params.head_size, params.dtype);
  require_alignment(op, "k", params.k, params.dtype);
  require_alignment(op, "v", params.v, params.dtype);
  require_alignment(op, "k_cache", params.k_cache, params.kv_dtype);
  require_alignment(op, "v_cache", params.v_cache, params.kv_dtype);
  if (params.num_tokens == 0) return;
  const LaunchShape shape{dim3{static_cast<unsigned>(params.num_tokens), 1, 1}, kThreads};
  const LaunchParams launch_params{params, element_bytes(params.dtype)};
  if (params.kv_dtype != DType::kFloat8) return launch(op, write_kv_kernel, shape, launch_params, device.stream());
  with_element_type(params.dtype, [&]<class Element>(Element) {
    launch(op, write_float8_kv_kernel<Element>, shape, launch_params, device.stream());
  });
}

}  // namespace cudaprefill::cuda
