// The emulation of csrc/cuda/ptx/async_copy.cuh. A copy lands as late as the waits allow, and it reads its source only
// then: what the hardware may do at any moment in between, this does at the worst one. Where kernels ahead may still
// write the source, the worst moment to read it is the first.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>
#include <source_location>
#include <string>

namespace cudaprefill::ptx {

inline void copy_async_16(uint32_t destination, const void* source, bool valid,
                          std::source_location where = std::source_location::current()) {
  auto& machine = emu::Machine::instance();
  const void* host = nullptr;
  if (valid) {
    auto& memory = emu::DeviceMemory::instance();
    host = memory.resolve(source, 16, emu::Access::kRead);
    if (!host) machine.fail("invalid global read of 16 bytes by cp.async: " + memory.explain(source, 16), where);
  }
  const std::string wrong = machine.shared_memory().begin_copy(destination, 16, machine.accessor(where));
  if (!wrong.empty()) machine.fail(wrong, where);
  emu::AsyncCopy copy{destination, host, {}, where};
  if (host && machine.is_early()) {
    std::memcpy(copy.data.data(), host, copy.data.size());
    copy.source = nullptr;
  }
  machine.current().uncommitted_copies.push_back(copy);
}

inline void commit_copies() {
  emu::Thread& thread = emu::Machine::instance().current();
  thread.copy_groups.push_back(std::move(thread.uncommitted_copies));
  thread.uncommitted_copies.clear();
}

template <int pending>
void wait_for_copies() {
  auto& machine = emu::Machine::instance();
  auto& groups = machine.current().copy_groups;
  while (groups.size() > pending) {
    for (const emu::AsyncCopy& copy : groups.front()) {
      const void* data = copy.source ? copy.source : copy.data.data();
      const std::string wrong =
          machine.shared_memory().finish_copy(copy.destination, 16, data, machine.accessor(copy.where));
      if (!wrong.empty()) machine.fail(wrong, copy.where);
    }
    groups.erase(groups.begin());
  }
}

}  // namespace cudaprefill::ptx
