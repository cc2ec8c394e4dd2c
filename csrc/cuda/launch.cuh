// The one place where kernels are launched, and where the launch is checked.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>

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

#ifdef __CUDACC__

// Whether the current device runs machine code of this file that keeps the rule of stream_order.cuh: code that was
// compiled for this very device, of 9.0 or later. PTX of an earlier one, which later devices compile for themselves,
// has no wait in it, and must not begin early. CUDAPREFILL_PROGRAMMATIC_LAUNCH=0 says no, to compare. Static, for each
// file has its own list.
static bool launches_are_programmatic() {
  constexpr int kCompiledFor[] = {__CUDA_ARCH_LIST__};  // 900 for 9.0
  constexpr int kFirst = 900;
  // A step launches hundreds of kernels on one device: it is asked what it is once.
  thread_local int asked_device = -1;
  thread_local bool can = false;
  int device = 0;
  check_cuda("cudaGetDevice", cudaGetDevice(&device));
  if (device != asked_device) {
    int major = 0, minor = 0;
    check_cuda("cudaDeviceGetAttribute", cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    check_cuda("cudaDeviceGetAttribute", cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
    const int capability = 100 * major + 10 * minor;
    can = false;
    for (const int architecture : kCompiledFor) can |= architecture == capability && capability >= kFirst;
    asked_device = device;
  }
  const char* wanted = std::getenv("CUDAPREFILL_PROGRAMMATIC_LAUNCH");
  return can && !(wanted && std::string_view(wanted) == "0");
}

// A programmatic launch where the device can: the kernel may begin before the one ahead in the stream is complete, and
// in a captured graph the edge between them is such a one.
template <class Params>
void launch(const char* name, void (*kernel)(Params), const LaunchShape& shape, const Params& params,
            cudaStream_t stream) {
  constexpr size_t kSharedBytesWithoutAsking = 48 * 1024;
  if (shape.shared_bytes > kSharedBytesWithoutAsking) {
    check_cuda(name, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          static_cast<int>(shape.shared_bytes)));
  }
  cudaLaunchAttribute programmatic{};
  programmatic.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  programmatic.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = shape.grid;
  config.blockDim = dim3(shape.threads);
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream;
  config.attrs = &programmatic;
  config.numAttrs = launches_are_programmatic() ? 1 : 0;
  check_cuda(name, cudaLaunchKernelEx(&config, kernel, params));
}

#endif  // __CUDACC__

}  // namespace cudaprefill
