// How what was measured (measured_kernels.h) becomes a choice.
#pragma once

#include <cstddef>
#include <cstdint>

#include "csrc/cuda/kernels.h"

namespace cudaprefill::cuda {

template <class Kernel>
struct MeasuredKernel {
  int head_size;
  int64_t least;  // new tokens, or requests
  Kernel kernel;
};

// The one that was measured at that head size for the nearest size at or below this one, or the nearest above; without
// any, `otherwise`. Within a head size the table goes upwards.
template <class Table, class Kernel>
constexpr Kernel measured_kernel(const Table& table, int head_size, int64_t size, Kernel otherwise) {
  bool found = false;
  for (const auto& measured : table) {
    if (measured.head_size != head_size || (found && measured.least > size)) continue;
    otherwise = measured.kernel;
    found = true;
  }
  return otherwise;
}

}  // namespace cudaprefill::cuda
