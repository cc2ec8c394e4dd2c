// The emulation of csrc/cuda/ptx/programmatic_launch.cuh: csrc/emu/stream.h says when kernels begin.
#pragma once

#include <cuda_runtime.h>

#include <source_location>

namespace cudaprefill::ptx {

inline void wait_for_kernel_before(std::source_location where = std::source_location::current()) {
  emu::Machine::instance().wait_for_kernel_before(where);
}

inline void let_next_kernel_begin() { emu::Machine::instance().let_next_kernel_begin(); }

}  // namespace cudaprefill::ptx
