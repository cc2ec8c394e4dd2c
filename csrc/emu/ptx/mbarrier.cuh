// The emulation of csrc/cuda/ptx/mbarrier.cuh.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <source_location>

namespace cudaprefill::ptx {

constexpr uint32_t kMbarrierBytes = 8;

inline void mbarrier_init(uint32_t mbarrier, uint32_t arrivals,
                          std::source_location where = std::source_location::current()) {
  auto& machine = emu::Machine::instance();
  machine.mbarriers().init(machine, mbarrier, arrivals, where);
}

inline void fence_mbarrier_init() {
  auto& machine = emu::Machine::instance();
  machine.mbarriers().fence_init(machine.current().rank);
}

inline void mbarrier_arrive(uint32_t mbarrier, std::source_location where = std::source_location::current()) {
  auto& machine = emu::Machine::instance();
  machine.mbarriers().arrive(machine, mbarrier, 0, where);
}

inline void mbarrier_arrive_expecting(uint32_t mbarrier, uint32_t bytes,
                                      std::source_location where = std::source_location::current()) {
  auto& machine = emu::Machine::instance();
  machine.mbarriers().arrive(machine, mbarrier, bytes, where);
}

inline void mbarrier_wait(uint32_t mbarrier, uint32_t parity,
                          std::source_location where = std::source_location::current()) {
  emu::Machine::instance().wait_at_mbarrier(mbarrier, parity, where);
}

inline void fence_proxy_async(std::source_location where = std::source_location::current()) {
  auto& machine = emu::Machine::instance();
  machine.shared_memory().fence_proxy(machine.accessor(where));
  machine.mbarriers().fence_init(machine.current().rank);  // an mbarrier's initial state is such a write, too
}

}  // namespace cudaprefill::ptx
