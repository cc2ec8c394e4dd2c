// The one place where kernels are launched, and where the launch is checked.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <stdexcept>
#include <string>

namespace cudaprefill {

struct LaunchShape {
  dim3 grid;
  unsigned threads;
  size_t shared_bytes = 0;
};

// Raises std::runtime_error with the kernel's name where the device refuses.
inline void check_cuda(const std::string& what, cudaError_t status) {
  if (status != cudaSuccess) throw std::runtime_error(what + ": " + cudaGetErrorString(status));
}

template <class Params>
void launch(const char* name, void (*kernel)(Params), const LaunchShape& shape, const Params& params,
            cudaStream_t stream) {
  constexpr size_t kSharedBytesWithoutAsking = 48 * 1024;
  if (shape.shared_bytes > kSharedBytesWithoutAsking) {
    check_cuda(name, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          static_cast<int>(shape.shared_bytes)));
  }
  cudaLaunchConfig_t config{};
  config.gridDim = shape.grid;
  config.blockDim = dim3(shape.threads);
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream;
  check_cuda(name, cudaLaunchKernelEx(&config, kernel, params));
}

}  // namespace cudaprefill
