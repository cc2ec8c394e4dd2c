#include "csrc/emu/device_memory.h"

#include <cstdint>
#include <sstream>

namespace cudaprefill::emu {
namespace {

// Bit 55 of a user space address is zero on x86-64 and on AArch64, and an address with it set is never mapped there.
constexpr uintptr_t kDeviceBit = uintptr_t{1} << 55;

}  // namespace

DeviceMemory& DeviceMemory::instance() {
  static DeviceMemory memory;
  return memory;
}

uintptr_t DeviceMemory::add(const char* name, uintptr_t host, uint64_t bytes, Access access) {
  if (host == 0) return 0;
  ranges_.push_back({name, host, bytes, access});
  return host ^ kDeviceBit;
}

void* DeviceMemory::resolve(const void* address, size_t bytes, Access access, std::string& why) const {
  const auto device = reinterpret_cast<uintptr_t>(address);
  const uintptr_t host = device ^ kDeviceBit;
  std::ostringstream text;
  if (host % bytes != 0) {
    text << "the address is not a multiple of " << bytes;
    why = text.str();
    return nullptr;
  }
  const Range* nearest = nullptr;
  uint64_t nearest_distance = UINT64_MAX;
  bool read_only = false;
  for (const Range& range : ranges_) {
    const bool inside = host >= range.begin && host - range.begin + bytes <= range.bytes;
    if (inside && (access == Access::kRead || range.access == Access::kReadWrite)) return reinterpret_cast<void*>(host);
    read_only |= inside;
    const uintptr_t end = range.begin + range.bytes;
    const uint64_t distance = host < range.begin ? range.begin - host : host < end ? 0 : host - end;
    if (distance < nearest_distance) {
      nearest_distance = distance;
      nearest = &range;
    }
  }
  if (!nearest) {
    text << "no memory was handed to the kernel";
  } else if (read_only) {
    text << nearest->name << " is read-only";
  } else {
    const auto offset = static_cast<int64_t>(host - nearest->begin);
    text << "at byte " << offset << " of " << nearest->name << ", which has " << nearest->bytes << " bytes";
  }
  why = text.str();
  return nullptr;
}

}  // namespace cudaprefill::emu
