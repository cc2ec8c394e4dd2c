#include "csrc/emu/device_memory.h"

#include <cstdint>
#include <sstream>

namespace cudaprefill::emu {
DeviceMemory& DeviceMemory::instance() {
  static DeviceMemory memory;
  return memory;
}

uintptr_t DeviceMemory::add(const char* name, uintptr_t host, uint64_t bytes, Access access) {
  if (host == 0) return 0;
  ranges_.push_back({name, host, bytes, access});
  return host ^ kDeviceBit;
}

std::string DeviceMemory::explain(const void* address, size_t bytes) const {
  const uintptr_t host = reinterpret_cast<uintptr_t>(address) ^ kDeviceBit;
  if (host % bytes != 0) return "the address is not a multiple of " + std::to_string(bytes);
  const Range* nearest = nullptr;
  uint64_t nearest_distance = UINT64_MAX;
  for (const Range& range : ranges_) {
    if (range.contains(host, bytes)) return std::string(range.name) + " is read-only";
    const uintptr_t end = range.begin + range.bytes;
    const uint64_t distance = host < range.begin ? range.begin - host : host < end ? 0 : host - end;
    if (distance < nearest_distance) {
      nearest_distance = distance;
      nearest = &range;
    }
  }
  if (!nearest) return "no memory was handed to the kernel";
  std::ostringstream text;
  text << "at byte " << static_cast<int64_t>(host - nearest->begin) << " of " << nearest->name << ", which has "
       << nearest->bytes << " bytes";
  return text.str();
}

}  // namespace cudaprefill::emu
