// The emulation of csrc/cuda/launch.cuh: a launch goes into the stream, and runs when the host synchronises.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

namespace cudaprefill {

struct LaunchShape {
  dim3 grid;
  unsigned threads;
  size_t shared_bytes = 0;
};

template <class Params>
void launch(const char* name, void (*kernel)(Params), const LaunchShape& shape, const Params& params, cudaStream_t) {
  emu::Machine::instance().launch(name, shape.grid, shape.threads, shape.shared_bytes, [=] { kernel(params); });
}

}  // namespace cudaprefill
