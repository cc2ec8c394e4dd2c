// The emulation of csrc/cuda/ptx/warpgroup_matrix.cuh: csrc/emu/warpgroup_products.h says when a product happens.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <cstdint>
#include <optional>
#include <source_location>
#include <type_traits>

#include "csrc/cuda/element.cuh"

namespace cudaprefill::ptx {

namespace detail {

// One warp, all lanes, calls function(machine).
template <class Function>
void by_warp(const char* name, Function function, std::source_location where) {
  struct Part {
    Function* function;
  } part{&function};
  constexpr uint32_t kFullWarp = 0xffffffff;
  emu::Machine::instance().warp_operation(
      name, kFullWarp, &part,
      [](emu::Machine& machine, const auto& lanes) { (*static_cast<Part*>(lanes[0])->function)(machine); }, where);
}

template <class Element, int tiles>
void multiply(float (&c)[tiles][4], const uint32_t* a, std::optional<uint64_t> a_descriptor, uint64_t b,
              bool transposed, bool accumulate, std::source_location where) {
  static_assert(tiles * 8 <= 256 && tiles >= 1);
  struct Part {
    emu::ProductLane lane;
    emu::ProductCall call;
    std::source_location where;
  } part{{&c[0][0], a}, {tiles * 8, std::is_same_v<Element, Half>, a_descriptor, b, transposed, accumulate}, where};
  constexpr uint32_t kFullWarp = 0xffffffff;
  emu::Machine::instance().warp_operation(
      "wgmma.mma_async", kFullWarp, &part,
      [](emu::Machine& machine, const auto& lanes) {
        std::array<emu::ProductLane, emu::kWarpSize> parts;
        const Part& first = *static_cast<Part*>(lanes[0]);
        for (unsigned lane = 0; lane < emu::kWarpSize; ++lane) {
          const Part& of_lane = *static_cast<Part*>(lanes[lane]);
          if (!(of_lane.call == first.call)) machine.fail("wgmma: the lanes do not agree on descriptors", first.where);
          parts[lane] = of_lane.lane;
        }
        machine.products().issue(machine, first.call, parts, first.where);
      },
      where);
}

}  // namespace detail

inline void fence_products(std::source_location where = std::source_location::current()) {
  detail::by_warp("wgmma.fence", [where](emu::Machine& machine) { machine.products().fence(machine, where); }, where);
}

inline void commit_products(std::source_location where = std::source_location::current()) {
  detail::by_warp(
      "wgmma.commit_group", [where](emu::Machine& machine) { machine.products().commit(machine, where); }, where);
}

template <int pending>
void wait_for_products(std::source_location where = std::source_location::current()) {
  detail::by_warp(
      "wgmma.wait_group",
      [where](emu::Machine& machine) {
        machine.products().wait(machine, pending, where);
        constexpr uint32_t kFullWarp = 0xffffffff;
        machine.join_warp(kFullWarp);  // the instruction waits for the warp as a whole
      },
      where);
}

template <int tiles>
void pin_accumulators(float (&)[tiles][4]) {}

template <class Element, bool transposed, int tiles>
void multiply_shared(float (&c)[tiles][4], uint64_t a, uint64_t b, bool accumulate,
                     std::source_location where = std::source_location::current()) {
  detail::multiply<Element>(c, nullptr, a, b, transposed, accumulate, where);
}

template <class Element, bool transposed, int tiles>
void multiply_registers(float (&c)[tiles][4], const uint32_t (&a)[4], uint64_t b, bool accumulate,
                        std::source_location where = std::source_location::current()) {
  detail::multiply<Element>(c, a, std::nullopt, b, transposed, accumulate, where);
}

}  // namespace cudaprefill::ptx
