// A block of threads and all that is its own. It can stop in the middle and go on later, after blocks of other grids.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <source_location>
#include <string>
#include <vector>

#include "csrc/emu/fiber.h"
#include "csrc/emu/mbarriers.h"
#include "csrc/emu/registers.h"
#include "csrc/emu/shared_memory.h"
#include "csrc/emu/tensor_copies.h"
#include "csrc/emu/warpgroup_products.h"

namespace cudaprefill::emu {

constexpr unsigned kWarpSize = 32;
constexpr unsigned kNamedBarriers = 16;

struct Index3 {
  unsigned x = 1, y = 1, z = 1;
};

// A copy that cp.async has issued and no wait has finished yet.
struct AsyncCopy {
  uint32_t destination;
  const void* source;            // host address, read when the copy lands; null where `data` has it all
  std::array<uint8_t, 16> data;  // zeros, or what was there when the copy was issued
  std::source_location where;
};

struct Thread {
  enum class State { kReady, kInWarpOperation, kAtBarrier, kAtMbarrier, kWantsRegisters, kAtKernelBefore, kDone };

  unsigned rank;
  Index3 index;
  State state = State::kReady;
  VectorClock clock;
  std::source_location where;  // of the operation that it waits for
  unsigned barrier = 0;
  uint32_t mbarrier = 0, parity = 0;  // that it waits for
  std::vector<AsyncCopy> uncommitted_copies;
  std::vector<std::vector<AsyncCopy>> copy_groups;  // oldest first
  std::unique_ptr<Fiber> fiber;

  unsigned lane() const { return rank % kWarpSize; }
  unsigned warp() const { return rank / kWarpSize; }
};

struct WarpOperation {
  const char* name = nullptr;
  uint32_t mask = 0, arrived = 0;
  std::source_location where;
  std::array<void*, kWarpSize> lanes{};
};

struct Barrier {
  unsigned expected = 0;
  std::vector<unsigned> arrived;  // ranks, those that do not wait included
  VectorClock clock;              // of them, each as it was when it came
  std::source_location where;
};

struct ThreadBlock {
  Index3 index;
  SharedMemory shared_memory;
  Mbarriers mbarriers;
  TensorCopies tensor_copies;
  WarpgroupProducts products;
  RegisterPool registers;
  std::vector<Thread> threads;
  std::vector<WarpOperation> warp_operations;
  std::array<Barrier, kNamedBarriers> barriers;
  bool has_triggered = false;    // griddepcontrol.launch_dependents
  bool waits_for_grids = false;  // no thread can go on before the grids ahead are complete

  // As it is when it begins, but for the fibers of its threads.
  void reset(Index3 block_index, unsigned num_threads, size_t shared_bytes);

  unsigned num_warps() const { return static_cast<unsigned>(warp_operations.size()); }
};

}  // namespace cudaprefill::emu
