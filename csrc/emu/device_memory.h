// The global memory of the emulated device: the ranges that the host has handed over, and nothing else.
//
// A device pointer is the host's address with one bit flipped that no valid address has set, so a kernel that follows a
// pointer without the checked loads and stores of csrc/cuda/ptx crashes at once, as the host does with a real one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
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

  // The host address behind a device address, if [address, address + bytes) lies in a range with that access and is
  // aligned to `bytes`, a power of two. Otherwise null, and explain() says why.
  void* resolve(const void* address, size_t bytes, Access access) {
    const uintptr_t host = reinterpret_cast<uintptr_t>(address) ^ kDeviceBit;
    if (host & (bytes - 1)) return nullptr;
    // Accesses come in runs to the same few tensors: a hit moves forward.
    for (size_t i = 0; i < ranges_.size(); ++i) {
      if (!ranges_[i].contains(host, bytes) || ranges_[i].access < access) continue;
      if (i > 0) std::swap(ranges_[i], ranges_[i - 1]);
      return reinterpret_cast<void*>(host);
    }
    return nullptr;
  }
  std::string explain(const void* address, size_t bytes) const;

  // To a host address that resolve() has given.
  void store(void* host, const void* data, size_t bytes);

  // --- what a grid ahead has written, for blocks that have not waited for it (stream.h) ---
  // Whether stores are remembered from now on; of at most 16 bytes each.
  void record_writes(bool recorded) { recorded_ = recorded; }
  // Memory is as it was before the remembered stores, and as it is after them.
  void hide_writes();
  void show_writes();
  // All see them from now on.
  void forget_writes() { writes_.clear(); }

  uint64_t bytes() const;  // of all ranges
  // Takes what all ranges hold away and leaves NaN, or -1.
  class Contents;
  Contents take_contents();

 private:
  // Bit 55 of a user space address is zero on x86-64 and on AArch64, and an address with it set is never mapped there.
  static constexpr uintptr_t kDeviceBit = uintptr_t{1} << 55;

  struct Range {
    const char* name;
    uintptr_t begin;
    uint64_t bytes;
    Access access;

    bool contains(uintptr_t host, size_t size) const { return host >= begin && host - begin + size <= bytes; }
  };
  uintptr_t add(const char* name, uintptr_t host, uint64_t bytes, Access access);

  struct Write {
    void* host;
    size_t bytes;
    std::array<uint8_t, 16> before, after;
  };

  std::vector<Range> ranges_;
  bool recorded_ = false;
  std::vector<Write> writes_;  // oldest first
};

// What was taken away; it is put back at the latest when this ends.
class DeviceMemory::Contents {
 public:
  Contents() = default;
  Contents(Contents&&) = default;
  ~Contents() { put_back(); }
  void put_back();

 private:
  friend class DeviceMemory;
  std::vector<std::pair<void*, std::vector<uint8_t>>> ranges_;  // those may overlap
};

}  // namespace cudaprefill::emu
