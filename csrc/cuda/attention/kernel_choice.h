// How what was measured (measured_kernels.h) becomes a choice.
#pragma once

#include <cstddef>
#include <cstdint>

#include "csrc/cuda/kernels.h"
#include "csrc/ops/params.h"

namespace cudaprefill::cuda {

template <class Kernel>
struct MeasuredKernel {
  int kv_bytes;  // of a number in the caches: what a kernel has to move, and whether it has to widen it
  int head_size;
  int64_t least;  // new tokens, or requests
  Kernel kernel;
};

// The one that was measured over such caches at that head size for the nearest size at or below this one, or the
// nearest above; without any, `otherwise`. Within a head size the table goes upwards.
template <class Table, class Kernel>
constexpr Kernel measured_kernel(const Table& table, DType kv_dtype, int head_size, int64_t size, Kernel otherwise) {
  bool found = false;
  for (const auto& measured : table) {
    if (measured.kv_bytes != element_bytes(kv_dtype) || measured.head_size != head_size) continue;
    if (found && measured.least > size) continue;
    otherwise = measured.kernel;
    found = true;
  }
  return otherwise;
}

}  // namespace cudaprefill::cuda
