// silu_and_mul and gelu_tanh_and_mul: one thread for 16 bytes of the output; whole blocks of threads run along each
// row.
#include <cuda_runtime.h>

#include <launch.cuh>

#include "csrc/cuda/activation.cuh"
#include "csrc/cuda/checks.h"
#include "csrc/cuda/kernels.h"
#include "csrc/cuda/stream_order.cuh"
#include "csrc/cuda/vector.cuh"

namespace cudaprefill::cuda {
namespace {

constexpr int kThreads = 256;

struct LaunchParams {
  GatedParams op;
  int blocks_per_row;
};

template <class Element, Activation activation>
__global__ void __launch_bounds__(kThreads) activate_and_mul_kernel(const __grid_constant__ LaunchParams launch) {
  constexpr int kVector = kVectorSize<Element>;
  const GatedParams& params = launch.op;
  const int64_t row = blockIdx.x / launch.blocks_per_row;
  const int column = ((blockIdx.x % launch.blocks_per_row) * kThreads + threadIdx.x) * kVector;
  enter_stream();
  if (column >= params.size) return;

  const Element* x = static_cast<const Element*>(params.x) + row * params.x_stride + column;
  float gate[kVector], up[kVector];
  load_vector(x, gate);
  load_vector(x + params.size, up);
#pragma unroll
  for (int i = 0; i < kVector; ++i) gate[i] = activate<activation>(gate[i]) * up[i];
  store_vector(static_cast<Element*>(params.out) + row * params.out_stride + column, gate);
}

template <Activation activation>
void activate_and_mul(const char* op, const GatedParams& params, Device& device) {
  require_whole_vectors(op, "size", params.size, params.dtype);
  require_alignment(op, "x", params.x, {params.x_stride}, params.dtype);
  if (params.num_rows == 0 || params.size == 0) return;
  with_element_type(params.dtype, [&]<class Element>(Element) {
    const int per_block = kThreads * kVectorSize<Element>;
    const int blocks_per_row = (params.size + per_block - 1) / per_block;
    const LaunchShape shape{dim3{static_cast<unsigned>(params.num_rows * blocks_per_row), 1, 1}, kThreads};
    launch(op, activate_and_mul_kernel<Element, activation>, shape, LaunchParams{params, blocks_per_row},
           device.stream());
  });
}

}  // namespace

void silu_and_mul(const SiluAndMulParams& params, Device& device) {
  activate_and_mul<Activation::kSilu>("silu_and_mul", params, device);
}

void gelu_tanh_and_mul(const GeluTanhAndMulParams& params, Device& device) {
  activate_and_mul<Activation::kGeluTanh>("gelu_tanh_and_mul", params, device);
}

}  // namespace cudaprefill::cuda
