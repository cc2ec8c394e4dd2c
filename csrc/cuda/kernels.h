// The host side of the CUDA kernels: one function for each op, plain C++ without torch. The same functions serve the
// emulation. Each checks what its kernel needs beyond the checks of csrc/ops and raises std::invalid_argument.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "csrc/ops/expert_params.h"
#include "csrc/ops/params.h"

namespace cudaprefill::cuda {

// The prefill kernels for 16-bit formats. kBest: what was measured to be the fastest, if anything was
// (attention/measured_kernels.h); kTensorCopies where the device and the arguments allow it, else kAsyncCopies, else
// kMma.
enum class PrefillKernel {
  kBest,
  kMma,           // mma.sync, for every device and head size
  kTensorCopies,  // wgmma, keys and values by cp.async.bulk.tensor; compute capability 9.0
  kAsyncCopies,   // wgmma, keys and values by cp.async; compute capability 9.0
};

// best, mma, tensor or async; raises std::invalid_argument.
PrefillKernel prefill_kernel_named(const std::string& name);

// The decode kernels for 16-bit formats, mma.sync both. kBest: as above, and kTensorCopies where the device and the
// arguments allow it.
enum class DecodeKernel {
  kBest,
  kAsyncCopies,   // keys and values by cp.async, for every device and head size
  kTensorCopies,  // keys and values by cp.async.bulk.tensor; compute capability 9.0
};

// best, async or tensor; raises std::invalid_argument.
DecodeKernel decode_kernel_named(const std::string& name);

// What a launch needs to know of the device.
class Device {
 public:
  virtual ~Device() = default;
  virtual cudaStream_t stream() = 0;
  virtual int num_multiprocessors() = 0;
  virtual int compute_capability() = 0;  // 90 for 9.0
  virtual int64_t l2_bytes() = 0;        // of the L2 cache
  // For comparison: one that the device or the arguments do not allow is not taken.
  virtual PrefillKernel wanted_prefill_kernel() = 0;
  virtual DecodeKernel wanted_decode_kernel() = 0;
  // Memory of the device for this call, of a size that the host knows; it may be reused once the stream has passed.
  virtual void* workspace(size_t bytes) = 0;
};

void write_kv(const WriteKvParams& params, Device& device);
void rope_write_kv(const RopeWriteKvParams& params, Device& device);
void rms_norm(const RmsNormParams& params, Device& device);
void silu_and_mul(const SiluAndMulParams& params, Device& device);
void gelu_tanh_and_mul(const GeluTanhAndMulParams& params, Device& device);
void expert_mlp(const ExpertMlpParams& params, Device& device);
void copy_blocks(const CopyBlocksParams& params, Device& device);
void add_lora(const AddLoraParams& params, Device& device);
void prefill_attention(const PrefillAttentionParams& params, Device& device);
void decode_attention(const DecodeAttentionParams& params, Device& device);
// Where prefill has narrow tiles, on Hopper, decodes and chunks of a step are one launch of it; elsewhere they are two.
void mixed_attention(const PrefillAttentionParams& params, int num_decodes, Device& device);

}  // namespace cudaprefill::cuda
