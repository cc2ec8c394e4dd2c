// The CUDA kernels, registered as the CUDA backend of the ops. Only headers of torch's stable ABI: the library is built
// with any torch, the CPU one too, and loaded where there is a GPU.
#include <cuda_runtime.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/library.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "csrc/cuda/kernels.h"
#include "csrc/cuda/launch.cuh"
#include "csrc/ops/register_ops.h"

namespace cudaprefill::cuda {
namespace {

// The device of a tensor, current while this lives.
class TorchDevice : public Device {
 public:
  explicit TorchDevice(const void* data) {
    cudaPointerAttributes attributes{};
    check_cuda("cudaPointerGetAttributes", cudaPointerGetAttributes(&attributes, data));
    check_cuda("cudaGetDevice", cudaGetDevice(&previous_));
    index_ = attributes.type == cudaMemoryTypeDevice ? attributes.device : previous_;
    check_cuda("cudaSetDevice", cudaSetDevice(index_));
  }
  ~TorchDevice() override { cudaSetDevice(previous_); }

  cudaStream_t stream() override {
    void* stream = nullptr;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(index_, &stream));
    return static_cast<cudaStream_t>(stream);
  }

  int num_multiprocessors() override {
    int count = 0;
    check_cuda("cudaDeviceGetAttribute", cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, index_));
    return count;
  }

  int compute_capability() override {
    int major = 0, minor = 0;
    check_cuda("cudaDeviceGetAttribute", cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index_));
    check_cuda("cudaDeviceGetAttribute", cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, index_));
    return 10 * major + minor;
  }

  int64_t l2_bytes() override {
    int bytes = 0;
    check_cuda("cudaDeviceGetAttribute", cudaDeviceGetAttribute(&bytes, cudaDevAttrL2CacheSize, index_));
    return bytes;
  }

  PrefillKernel wanted_prefill_kernel() override {
    const char* name = std::getenv("CUDAPREFILL_PREFILL_KERNEL");
    return prefill_kernel_named(name ? name : "");
  }

  DecodeKernel wanted_decode_kernel() override {
    const char* name = std::getenv("CUDAPREFILL_DECODE_KERNEL");
    return decode_kernel_named(name ? name : "");
  }

  // From torch's allocator, which reuses it in the order of the stream and keeps it for a captured graph.
  void* workspace(size_t bytes) override {
    const auto size = static_cast<int64_t>(bytes);
    const int64_t stride = 1;
    AtenTensorHandle handle;
    TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(1, &size, &stride, aoti_torch_dtype_uint8(),
                                                    aoti_torch_device_type_cuda(), index_, &handle));
    workspaces_.emplace_back(handle);
    return workspaces_.back().data_ptr();
  }

 private:
  int previous_ = 0, index_ = 0;
  std::vector<ops::Tensor> workspaces_;
};

struct CudaBackend {
  static void write_kv(const WriteKvParams& params) { run(cuda::write_kv, params, params.k_cache.data); }
  static void rope_write_kv(const RopeWriteKvParams& params) { run(cuda::rope_write_kv, params, params.k_cache.data); }
  static void rms_norm(const RmsNormParams& params) { run(cuda::rms_norm, params, params.x); }
  static void silu_and_mul(const SiluAndMulParams& params) { run(cuda::silu_and_mul, params, params.x); }
  static void gelu_tanh_and_mul(const GeluTanhAndMulParams& params) { run(cuda::gelu_tanh_and_mul, params, params.x); }
  static void expert_mlp(const ExpertMlpParams& params) { run(cuda::expert_mlp, params, params.x); }
  static void copy_blocks(const CopyBlocksParams& params) { run(cuda::copy_blocks, params, params.k_cache.data); }
  static void add_lora(const AddLoraParams& params) { run(cuda::add_lora, params, params.out); }
  static void prefill_attention(const PrefillAttentionParams& params) {
    run(cuda::prefill_attention, params, params.k_cache.data);
  }
  static void decode_attention(const DecodeAttentionParams& params) {
    run(cuda::decode_attention, params, params.k_cache.data);
  }
  static void mixed_attention(const PrefillAttentionParams& params, int num_decodes) {
    TorchDevice device(params.k_cache.data);
    cuda::mixed_attention(params, num_decodes, device);
  }

 private:
  template <class Params>
  static void run(void (*op)(const Params&, Device&), const Params& params, const void* data) {
    TorchDevice device(data);
    op(params, device);
  }
};

}  // namespace
}  // namespace cudaprefill::cuda

STABLE_TORCH_LIBRARY_IMPL(cudaprefill, CUDA, m) { cudaprefill::ops::register_ops<cudaprefill::cuda::CudaBackend>(m); }
