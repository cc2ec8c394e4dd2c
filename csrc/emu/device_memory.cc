#include "csrc/emu/device_memory.h"

#include <cstdint>
#include <cstring>
#include <ranges>
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

void DeviceMemory::store(void* host, const void* data, size_t bytes) {
  if (recorded_) {
    Write& write = writes_.emplace_back();
    write.host = host;
    write.bytes = bytes;
    std::memcpy(write.before.data(), host, bytes);
    std::memcpy(write.after.data(), data, bytes);
  }
  std::memcpy(host, data, bytes);
}

uint64_t DeviceMemory::bytes() const {
  uint64_t sum = 0;
  for (const Range& range : ranges_) sum += range.bytes;
  return sum;
}

DeviceMemory::Contents DeviceMemory::take_contents() {
  constexpr int kNaNByte = 0xff;
  Contents contents;
  for (const Range& range : ranges_) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(range.begin);
    contents.ranges_.emplace_back(reinterpret_cast<void*>(range.begin),
                                  std::vector<uint8_t>(bytes, bytes + range.bytes));
  }
  for (const Range& range : ranges_) std::memset(reinterpret_cast<void*>(range.begin), kNaNByte, range.bytes);
  return contents;
}

void DeviceMemory::Contents::put_back() {
  for (const auto& [host, bytes] : ranges_) std::memcpy(host, bytes.data(), bytes.size());
  ranges_.clear();
}

void DeviceMemory::hide_writes() {
  for (const Write& write : std::views::reverse(writes_)) std::memcpy(write.host, write.before.data(), write.bytes);
}

void DeviceMemory::show_writes() {
  for (const Write& write : writes_) std::memcpy(write.host, write.after.data(), write.bytes);
}

}  // namespace cudaprefill::emu
