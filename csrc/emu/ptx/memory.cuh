// The emulation of csrc/cuda/ptx/memory.cuh: every access is checked.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>
#include <source_location>
#include <string>

namespace cudaprefill::ptx {

template <class T>
T load_global(const T* address, std::source_location where = std::source_location::current()) {
  auto& memory = emu::DeviceMemory::instance();
  const void* host = memory.resolve(address, sizeof(T), emu::Access::kRead);
  if (!host) {
    emu::Machine::instance().fail(
        "invalid global read of " + std::to_string(sizeof(T)) + " bytes: " + memory.explain(address, sizeof(T)), where);
  }
  T value;
  std::memcpy(&value, host, sizeof(T));
  return value;
}

template <class T>
void store_global(T* address, const T& value, std::source_location where = std::source_location::current()) {
  auto& memory = emu::DeviceMemory::instance();
  void* host = memory.resolve(address, sizeof(T), emu::Access::kReadWrite);
  if (!host) {
    emu::Machine::instance().fail(
        "invalid global write of " + std::to_string(sizeof(T)) + " bytes: " + memory.explain(address, sizeof(T)),
        where);
  }
  memory.store(host, &value, sizeof(T));
}

inline uint32_t shared_base() { return emu::SharedMemory::kBase; }

template <class T>
void load_shared(uint32_t address, T& value, std::source_location where = std::source_location::current()) {
  auto& machine = emu::Machine::instance();
  const std::string wrong = machine.shared_memory().read(address, sizeof(T), &value, machine.accessor(where));
  if (!wrong.empty()) machine.fail(wrong, where);
}

template <class T>
void store_shared(uint32_t address, const T& value, std::source_location where = std::source_location::current()) {
  auto& machine = emu::Machine::instance();
  const std::string wrong = machine.shared_memory().write(address, sizeof(T), &value, machine.accessor(where));
  if (!wrong.empty()) machine.fail(wrong, where);
}

inline uint32_t atomic_add_shared(uint32_t address, uint32_t value,
                                  std::source_location where = std::source_location::current()) {
  auto& machine = emu::Machine::instance();
  uint32_t* word = nullptr;
  const std::string wrong = machine.shared_memory().atomic(address, machine.accessor(where), &word);
  if (!wrong.empty()) machine.fail(wrong, where);
  const uint32_t before = *word;
  *word += value;
  return before;
}

}  // namespace cudaprefill::ptx
