#include "csrc/emu/tensor_copies.h"

#include <algorithm>
#include <cstring>

#include "csrc/emu/fault.h"
#include "csrc/emu/machine.h"
#include "csrc/emu/tensor_map.h"

namespace cudaprefill::emu {
namespace {

constexpr uint32_t kChunkBytes = 16, kChunkElements = 8, kElementBytes = 2;

// The swizzle repeats after 8 rows of its span; the unswizzled destination is a multiple of 128 bytes.
uint32_t alignment(TensorSwizzle swizzle) { return 128u << static_cast<int>(swizzle); }

}  // namespace

uint32_t swizzled(uint32_t address, TensorSwizzle swizzle) {
  const uint32_t mask = (1u << static_cast<int>(swizzle)) - 1;
  return address ^ ((address >> 7 & mask) << 4);
}

uint32_t TensorCopies::Copy::num_chunks() const {
  uint32_t elements = 1;
  for (int i = 0; i < shape.rank; ++i) elements *= shape.box[i];
  return elements / kChunkElements;
}

void TensorCopies::issue(Machine& machine, uint32_t destination, const TensorMap& map, const int (&coordinates)[5],
                         uint32_t mbarrier_address, std::source_location where) {
  constexpr const char* kName = "cp.async.bulk.tensor";
  machine.require_hopper(kName, where);
  const auto fail = [&](const std::string& what) { machine.fail(std::string(kName) + ": " + what, where); };
  Copy copy{destination, shape_of(map), {}, mbarrier_address, machine.current().clock, where};
  for (int i = 0; i < copy.shape.rank; ++i) copy.first[i] = coordinates[i];
  if (destination % alignment(copy.shape.swizzle) != 0) {
    fail("shared address " + std::to_string(destination) + " is not a multiple of " +
         std::to_string(alignment(copy.shape.swizzle)) + ", after which the swizzle repeats");
  }
  Mbarrier& mbarrier = machine.mbarriers().at(machine, mbarrier_address, kName, where);
  if (!mbarrier.fenced) fail("no fence lies between this and mbarrier.init");

  copy.clock[mbarrier.agent] = ++mbarrier.agent_time;
  const Accessor by{mbarrier.agent, false, &copy.clock, where};
  for (uint32_t chunk = 0; chunk < copy.num_chunks(); ++chunk) {
    const uint32_t at = swizzled(destination + chunk * kChunkBytes, copy.shape.swizzle);
    const std::string wrong = machine.shared_memory().begin_tensor_copy(at, kChunkBytes, by);
    if (!wrong.empty()) fail(wrong);
  }
  ++machine.counters().tensor_copies;
  pending_.push_back(std::move(copy));
}

bool TensorCopies::land_one(Machine& machine) {
  if (pending_.empty()) return false;
  const size_t index = machine.random()() % pending_.size();
  const Copy copy = std::move(pending_[index]);
  pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(index));
  land(machine, copy);
  return true;
}

void TensorCopies::land(Machine& machine, const Copy& copy) {
  const TensorShape& shape = copy.shape;
  Mbarrier& mbarrier = machine.mbarriers().at(machine, copy.mbarrier, "cp.async.bulk.tensor", copy.where);
  VectorClock clock = copy.clock;
  clock[mbarrier.agent] = ++mbarrier.agent_time;
  const Accessor by{mbarrier.agent, false, &clock, copy.where};

  for (uint32_t chunk = 0; chunk < copy.num_chunks(); ++chunk) {
    // Innermost first: the coordinates of the chunk's first element, and where the row that it is part of begins.
    uint32_t rest = chunk * kChunkElements;
    std::array<int64_t, TensorShape::kMaxRank> element{};
    bool row_inside = true;
    uint64_t row_offset = 0;
    for (int i = 0; i < shape.rank; ++i) {
      element[i] = copy.first[i] + rest % shape.box[i];
      rest /= shape.box[i];
      if (i == 0) continue;
      row_inside &= element[i] >= 0 && static_cast<uint64_t>(element[i]) < shape.extent[i];
      row_offset += static_cast<uint64_t>(element[i]) * shape.stride_bytes[i - 1];
    }
    uint16_t elements[kChunkElements] = {};
    const auto read = [&](int64_t column, uint32_t count, void* to) {
      const void* address = static_cast<const char*>(shape.data) + row_offset + column * kElementBytes;
      const uint32_t bytes = count * kElementBytes;
      auto& memory = DeviceMemory::instance();
      const void* host = memory.resolve(address, bytes, Access::kRead);
      if (!host) {
        machine.fail("invalid global read by cp.async.bulk.tensor: " + memory.explain(address, bytes), copy.where);
      }
      std::memcpy(to, host, bytes);
    };
    const auto extent = static_cast<int64_t>(shape.extent[0]);
    if (row_inside && element[0] % kChunkElements == 0 && element[0] >= 0 && element[0] + kChunkElements <= extent) {
      read(element[0], kChunkElements, elements);
    } else if (row_inside) {
      for (uint32_t i = 0; i < kChunkElements; ++i) {
        const int64_t column = element[0] + i;
        if (column >= 0 && column < extent) read(column, 1, &elements[i]);
      }
    }
    const uint32_t at = swizzled(copy.destination + chunk * kChunkBytes, shape.swizzle);
    const std::string wrong = machine.shared_memory().finish_tensor_copy(at, kChunkBytes, elements, by);
    if (!wrong.empty()) machine.fail("cp.async.bulk.tensor: " + wrong, copy.where);
  }
  machine.mbarriers().complete_bytes(machine, mbarrier, copy.num_chunks() * kChunkBytes, copy.where);
}

std::string TensorCopies::unfinished() const {
  if (pending_.empty()) return {};
  return "the block has ended, and " + std::to_string(pending_.size()) +
         " tensor copies have not landed; one is from " + short_location(pending_.front().where);
}

}  // namespace cudaprefill::emu
