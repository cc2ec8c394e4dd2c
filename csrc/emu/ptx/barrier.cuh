// The emulation of csrc/cuda/ptx/barrier.cuh.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <source_location>

namespace cudaprefill::ptx {

inline void named_barrier_sync(uint32_t id, uint32_t count,
                               std::source_location where = std::source_location::current()) {
  emu::Machine::instance().barrier(id, count, /*wait=*/true, where);
}

inline void named_barrier_arrive(uint32_t id, uint32_t count,
                                 std::source_location where = std::source_location::current()) {
  emu::Machine::instance().barrier(id, count, /*wait=*/false, where);
}

}  // namespace cudaprefill::ptx
