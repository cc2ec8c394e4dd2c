// copy_blocks: each thread owns the same 16 bytes of every block and takes the pairs in order, so a block may be the
// destination of one pair and the source of a later one. Grid: (pieces of a page, KV heads).
#include <cuda_runtime.h>

#include <launch.cuh>
#include <ptx/memory.cuh>

#include "csrc/cuda/checks.h"
#include "csrc/cuda/kernels.h"
#include "csrc/cuda/stream_order.cuh"

namespace cudaprefill::cuda {
namespace {

constexpr int kThreads = 128;

struct LaunchParams {
  CopyBlocksParams op;
  int element_bytes;
};

__global__ void __launch_bounds__(kThreads, 8) copy_blocks_kernel(const __grid_constant__ LaunchParams launch) {
  const CopyBlocksParams& params = launch.op;
  const int vectors_per_slot = params.head_size * launch.element_bytes / kVectorBytes;
  const int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  enter_stream();
  if (i >= params.block_size * vectors_per_slot) return;
  const int slot = i / vectors_per_slot, vector = i - slot * vectors_per_slot;
  const int head = blockIdx.y;
  const auto copy = [&](const PagedCache& cache, int64_t source, int64_t destination) {
    const auto address = [&](int64_t block) {
      const int64_t element = block * cache.block_stride + head * cache.head_stride + slot * cache.slot_stride;
      return reinterpret_cast<uint4*>(static_cast<char*>(cache.data) + element * launch.element_bytes) + vector;
    };
    ptx::store_global(address(destination), ptx::load_global(address(source)));
  };
  for (int64_t pair = 0; pair < params.num_pairs; ++pair) {
    const int64_t source = ptx::load_global(params.block_pairs + 2 * pair);
    const int64_t destination = ptx::load_global(params.block_pairs + 2 * pair + 1);
    copy(params.k_cache, source, destination);
    copy(params.v_cache, source, destination);
  }
}

}  // namespace

void copy_blocks(const CopyBlocksParams& params, Device& device) {
  constexpr const char* op = "copy_blocks";
  require_whole_vectors(op, "head_size", params.head_size, params.kv_dtype);
  require_alignment(op, "k_cache", params.k_cache, params.kv_dtype);
  require_alignment(op, "v_cache", params.v_cache, params.kv_dtype);
  if (params.num_pairs == 0 || params.num_kv_heads == 0) return;
  const int vectors = params.block_size * params.head_size * element_bytes(params.kv_dtype) / kVectorBytes;
  const LaunchShape shape{
      dim3{static_cast<unsigned>((vectors + kThreads - 1) / kThreads), static_cast<unsigned>(params.num_kv_heads), 1},
      kThreads};
  launch(op, copy_blocks_kernel, shape, LaunchParams{params, element_bytes(params.kv_dtype)}, device.stream());
}

}  // namespace cudaprefill::cuda
