// The emulation of csrc/cuda/ptx/warpgroup.cuh.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <source_location>

namespace cudaprefill::ptx {

template <uint32_t registers>
void decrease_registers_to(std::source_location where = std::source_location::current()) {
  emu::Machine::instance().change_registers(registers, /*increase=*/false, where);
}
template <uint32_t registers>
void increase_registers_to(std::source_location where = std::source_location::current()) {
  emu::Machine::instance().change_registers(registers, /*increase=*/true, where);
}

inline int anew(int value) { return value; }

// Any lane, as the seed has it, but the same throughout.
inline bool elect_one(std::source_location where = std::source_location::current()) {
  auto& machine = emu::Machine::instance();
  machine.require_hopper("elect.sync", where);
  constexpr uint32_t kFullWarp = 0xffffffff;
  machine.warp_operation("elect.sync", kFullWarp, &machine, [](emu::Machine&, const auto&) {}, where);
  return machine.current().lane() == (machine.seed() * 7 + 5) % emu::kWarpSize;
}

}  // namespace cudaprefill::ptx
