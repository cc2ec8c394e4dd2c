// The CUDA language for g++: what the kernels use of it, on the emulated machine.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <source_location>

#include "csrc/emu/machine.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)

using cudaStream_t = void*;
using dim3 = cudaprefill::emu::Index3;

struct alignas(8) float2 {
  float x, y;
};
struct alignas(8) uint2 {
  uint32_t x, y;
};
struct alignas(16) int4 {
  int32_t x, y, z, w;
};
struct alignas(16) uint4 {
  uint32_t x, y, z, w;
};

#define threadIdx (::cudaprefill::emu::Machine::instance().current().index)
#define blockIdx (::cudaprefill::emu::Machine::instance().block_index())
#define gridDim (::cudaprefill::emu::Machine::instance().grid_size())
#define blockDim (::dim3{::cudaprefill::emu::Machine::instance().num_threads(), 1, 1})

inline void __syncthreads(std::source_location where = std::source_location::current()) {
  auto& machine = cudaprefill::emu::Machine::instance();
  machine.barrier(0, machine.num_threads(), true, where);
}

inline void __syncwarp(uint32_t mask = 0xffffffff, std::source_location where = std::source_location::current()) {
  cudaprefill::emu::Machine::instance().warp_operation(
      "__syncwarp", mask, &mask,
      [](cudaprefill::emu::Machine& machine, const auto& lanes) {
        uint32_t present = 0;
        for (unsigned lane = 0; lane < cudaprefill::emu::kWarpSize; ++lane)
          present |= uint32_t{lanes[lane] != nullptr} << lane;
        machine.join_warp(present);
      },
      where);
}

namespace cudaprefill::emu {

template <class T>
struct Shuffle {
  T value;
  unsigned source;  // lane to read
  T result;
};

template <class T>
T shuffle(const char* name, uint32_t mask, T value, unsigned source, std::source_location where) {
  Shuffle<T> part{value, source, value};
  Machine& machine = Machine::instance();
  if (!(mask >> source & 1)) machine.fail(std::string(name) + " reads a lane outside its mask", where);
  machine.warp_operation(
      name, mask, &part,
      [](Machine&, const auto& lanes) {
        for (void* lane : lanes) {
          if (!lane) continue;
          auto* mine = static_cast<Shuffle<T>*>(lane);
          mine->result = static_cast<Shuffle<T>*>(lanes[mine->source])->value;
        }
      },
      where);
  return part.result;
}

struct Vote {
  bool value;
  uint32_t ballot;
};

inline uint32_t ballot(const char* name, uint32_t mask, bool value, std::source_location where) {
  Vote part{value, 0};
  Machine::instance().warp_operation(
      name, mask, &part,
      [](Machine&, const auto& lanes) {
        uint32_t ballot = 0;
        for (unsigned lane = 0; lane < kWarpSize; ++lane) {
          if (lanes[lane] && static_cast<Vote*>(lanes[lane])->value) ballot |= 1u << lane;
        }
        for (void* lane : lanes) {
          if (lane) static_cast<Vote*>(lane)->ballot = ballot;
        }
      },
      where);
  return part.ballot;
}

}  // namespace cudaprefill::emu

// `width` splits the warp into groups, as the CUDA programming guide has it: the source lane stays in the own group.
template <class T>
T __shfl_sync(uint32_t mask, T value, int source, int width = 32,
              std::source_location where = std::source_location::current()) {
  const unsigned lane = cudaprefill::emu::Machine::instance().current().lane();
  const unsigned group = lane & ~static_cast<unsigned>(width - 1);
  return cudaprefill::emu::shuffle("__shfl_sync", mask, value, group + (source & (width - 1)), where);
}

template <class T>
T __shfl_xor_sync(uint32_t mask, T value, int lane_mask, int width = 32,
                  std::source_location where = std::source_location::current()) {
  const unsigned lane = cudaprefill::emu::Machine::instance().current().lane();
  const unsigned source = lane ^ static_cast<unsigned>(lane_mask);
  const bool inside = source < ((lane & ~static_cast<unsigned>(width - 1)) + width);
  return cudaprefill::emu::shuffle("__shfl_xor_sync", mask, value, inside ? source : lane, where);
}

template <class T>
T __shfl_up_sync(uint32_t mask, T value, unsigned delta, int width = 32,
                 std::source_location where = std::source_location::current()) {
  const unsigned lane = cudaprefill::emu::Machine::instance().current().lane();
  const unsigned group = lane & ~static_cast<unsigned>(width - 1);
  return cudaprefill::emu::shuffle("__shfl_up_sync", mask, value, lane >= group + delta ? lane - delta : lane, where);
}

inline uint32_t __ballot_sync(uint32_t mask, bool value, std::source_location where = std::source_location::current()) {
  return cudaprefill::emu::ballot("__ballot_sync", mask, value, where);
}
inline int __any_sync(uint32_t mask, bool value, std::source_location where = std::source_location::current()) {
  return cudaprefill::emu::ballot("__any_sync", mask, value, where) != 0;
}
inline int __all_sync(uint32_t mask, bool value, std::source_location where = std::source_location::current()) {
  return cudaprefill::emu::ballot("__all_sync", mask, value, where) == mask;
}

inline int __ffs(int bits) { return bits == 0 ? 0 : std::countr_zero(static_cast<unsigned>(bits)) + 1; }
inline float __uint_as_float(uint32_t bits) { return std::bit_cast<float>(bits); }
inline uint32_t __float_as_uint(float value) { return std::bit_cast<uint32_t>(value); }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline float __fdividef(float a, float b) { return a / b; }

template <class T>
constexpr T min(T a, T b) {
  return a < b ? a : b;
}
template <class T>
constexpr T max(T a, T b) {
  return a < b ? b : a;
}
