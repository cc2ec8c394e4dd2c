// The global memory of the emulated device: the ranges that the host has handed over, and nothing else.
//
// A device pointer is the host's address with one bit flipped that no valid address has set, so a kernel that follows a
// pointer without the checked loads and stores of csrc/cuda/ptx crashes at once, as the host does with a real one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace cudaprefill::emu {

enum class Access { kRead, kReadWrite };

class DeviceMemory {
 public:
  static DeviceMemory& instance();

  // Registers `bytes` bytes at `host` under a name and returns the pointer that a kernel is given; null stays null.
  template <class T>
  T* expose(const char* name, T* host, uint64_t bytes, Access access) {
    return reinterpret_cast<T*>(add(name, reinterpret_cast<uintptr_t>(host), bytes, access));
  }
  void clear() { ranges_.clear(); }

  // The host address behind a device address, if [address, address + bytes) lies in a range with that access.
  // Otherwise null, and `why` says what is wrong.
  void* resolve(const void* address, size_t bytes, Access access, std::string& why) const;

 private:
  struct Range {
    const char* name;
    uintptr_t begin;
    uint64_t bytes;
    Access access;
  };
  uintptr_t add(const char* name, uintptr_t host, uint64_t bytes, Access access);

  std::vector<Range> ranges_;
};

}  // namespace cudaprefill::emu
