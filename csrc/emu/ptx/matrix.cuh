// The emulation of csrc/cuda/ptx/matrix.cuh, with the fragment layouts of the PTX ISA.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <source_location>

#include "csrc/cuda/element.cuh"

namespace cudaprefill::ptx {

void load_matrices(uint32_t address, uint32_t (&out)[4], std::source_location where = std::source_location::current());
void load_matrices_transposed(uint32_t address, uint32_t (&out)[4],
                              std::source_location where = std::source_location::current());

template <class Element>
void multiply_accumulate(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                         std::source_location where = std::source_location::current());

}  // namespace cudaprefill::ptx
