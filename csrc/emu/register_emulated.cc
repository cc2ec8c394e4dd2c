// The emulated kernels, registered as the CPU backend of a torch library of their own.
#include <torch/csrc/stable/library.h>

#include "csrc/emu/backend.h"
#include "csrc/ops/register_ops.h"

STABLE_TORCH_LIBRARY_IMPL(CUDAPREFILL_EMU_LIBRARY, CPU, m) {
  cudaprefill::ops::register_ops<cudaprefill::emu::EmulatedBackend>(m);
}
