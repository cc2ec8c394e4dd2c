#include "csrc/emu/shared_memory.h"

#include <algorithm>
#include <cstring>
#include <sstream>

#include "csrc/emu/fault.h"

namespace cudaprefill::emu {
namespace {

constexpr uint32_t kWarpSize = 32;
constexpr uint8_t kNaNByte = 0xff;  // 0xffff and 0xffffffff are NaN in all three formats

}  // namespace

void SharedMemory::reset(size_t bytes, size_t num_threads) {
  bytes_.assign(bytes, kNaNByte);
  words_.resize((bytes + kWordBytes - 1) / kWordBytes);
  for (Word& word : words_) {
    word.written = word.opaque = word.async_writer = false;
    word.copies_in_flight = word.tensor_copies_in_flight = word.product_reads_in_flight = 0;
    word.readers.clear();
  }
  sequence_ = 0;
  fences_.assign(num_threads, {});
}

std::string SharedMemory::check_bounds(uint32_t address, uint32_t bytes) const {
  if (address % bytes != 0) {
    return "shared address " + std::to_string(address) + " is not a multiple of " + std::to_string(bytes);
  }
  if (address >= kBase && uint64_t{address} - kBase + bytes <= bytes_.size()) return {};
  return "at byte " + std::to_string(static_cast<int64_t>(address) - kBase) + " of the " +
         std::to_string(bytes_.size()) + " bytes of shared memory";
}

bool SharedMemory::happens_before(const Event& event, const Accessor& by) {
  if (event.thread == by.thread) return true;
  if (event.whole_warp && event.thread / kWarpSize == by.thread / kWarpSize) return true;
  return (*by.clock)[event.thread] >= event.time;
}

std::string SharedMemory::race(const char* kind, uint32_t address, const Event& event) const {
  std::ostringstream text;
  text << "race: no barrier lies between this access to byte " << address - kBase << " of shared memory and the "
       << kind << " by " << (event.whole_warp ? "the warp of thread " : "thread ") << event.thread << " at "
       << short_location(event.where);
  return text.str();
}

std::string SharedMemory::read(uint32_t address, uint32_t bytes, void* out, const Accessor& by) {
  if (std::string wrong = check_bounds(address, bytes); !wrong.empty()) return wrong;
  const uint32_t first = (address - kBase) / kWordBytes;
  const Event event{by.thread, (*by.clock)[by.thread], by.whole_warp, false, by.where};
  for (uint32_t i = first; i < first + bytes / kWordBytes; ++i) {
    Word& word = words_[i];
    if (const char* occupied = word.occupied()) return occupied;
    if (word.copies_in_flight) return "reads shared memory that an unfinished cp.async is about to write";
    if (word.written && !happens_before(word.writer, by)) return race("write", kBase + i * kWordBytes, word.writer);
    // A read that happens before this one need not be remembered: whoever is after this one is after it as well.
    std::erase_if(word.readers, [&](const Event& reader) { return happens_before(reader, by); });
    word.readers.push_back(event);
  }
  std::memcpy(out, &bytes_[address - kBase], bytes);
  return {};
}

std::string SharedMemory::record_write(uint32_t address, uint32_t bytes, const Accessor& by, bool atomic, bool async) {
  const uint32_t first = (address - kBase) / kWordBytes;
  for (uint32_t i = first; i < first + bytes / kWordBytes; ++i) {
    Word& word = words_[i];
    const uint32_t at = kBase + i * kWordBytes;
    if (const char* occupied = word.occupied()) return occupied;
    if (word.product_reads_in_flight) return "overwrites shared memory that an unfinished wgmma is about to read";
    const bool both_atomic = atomic && word.writer.atomic;
    if (word.written && !both_atomic && !happens_before(word.writer, by)) return race("write", at, word.writer);
    for (const Event& reader : word.readers) {
      if (!happens_before(reader, by)) return race("read", at, reader);
    }
    word.readers.clear();
    word.written = true;
    word.async_writer = async;
    word.sequence = ++sequence_;
    word.writer = {by.thread, (*by.clock)[by.thread], by.whole_warp, atomic, by.where};
  }
  return {};
}

std::string SharedMemory::write(uint32_t address, uint32_t bytes, const void* data, const Accessor& by) {
  if (std::string wrong = check_bounds(address, bytes); !wrong.empty()) return wrong;
  if (std::string wrong = record_write(address, bytes, by, false); !wrong.empty()) return wrong;
  std::memcpy(&bytes_[address - kBase], data, bytes);
  return {};
}

std::string SharedMemory::atomic(uint32_t address, const Accessor& by, uint32_t** word) {
  if (std::string wrong = check_bounds(address, kWordBytes); !wrong.empty()) return wrong;
  if (std::string wrong = record_write(address, kWordBytes, by, true); !wrong.empty()) return wrong;
  *word = reinterpret_cast<uint32_t*>(&bytes_[address - kBase]);
  return {};
}

std::string SharedMemory::begin_copy(uint32_t address, uint32_t bytes, const Accessor& by) {
  if (std::string wrong = check_bounds(address, bytes); !wrong.empty()) return wrong;
  if (std::string wrong = record_write(address, bytes, by, false); !wrong.empty()) return wrong;
  const uint32_t first = (address - kBase) / kWordBytes;
  for (uint32_t i = first; i < first + bytes / kWordBytes; ++i) ++words_[i].copies_in_flight;
  return {};
}

std::string SharedMemory::finish_copy(uint32_t address, uint32_t bytes, const void* data, const Accessor& by) {
  const uint32_t first = (address - kBase) / kWordBytes;
  for (uint32_t i = first; i < first + bytes / kWordBytes; ++i) --words_[i].copies_in_flight;
  if (std::string wrong = record_write(address, bytes, by, false); !wrong.empty()) return wrong;
  std::memcpy(&bytes_[address - kBase], data, bytes);
  return {};
}

std::string SharedMemory::check_seen_by_async_proxy(uint32_t word_index, const Accessor& by) const {
  const Word& word = words_[word_index];
  if (!word.written || word.async_writer) return {};
  const auto& fences = fences_[word.writer.thread];
  const auto after = [](uint64_t sequence, const auto& fence) { return sequence < fence.first; };
  const auto fence = std::upper_bound(fences.begin(), fences.end(), word.sequence, after);
  if (fence != fences.end()) {
    const Event event{word.writer.thread, fence->second, false, false, word.writer.where};
    if (happens_before(event, by)) return {};
  }
  std::ostringstream text;
  text << "no fence.proxy.async lies between this access of the asynchronous proxy to byte " << word_index * kWordBytes
       << " of shared memory and the write by thread " << word.writer.thread << " at "
       << short_location(word.writer.where);
  return text.str();
}

std::string SharedMemory::begin_tensor_copy(uint32_t address, uint32_t bytes, const Accessor& by) {
  if (std::string wrong = check_bounds(address, bytes); !wrong.empty()) return wrong;
  const uint32_t first = (address - kBase) / kWordBytes;
  for (uint32_t i = first; i < first + bytes / kWordBytes; ++i) {
    if (std::string wrong = check_seen_by_async_proxy(i, by); !wrong.empty()) return wrong;
  }
  if (std::string wrong = record_write(address, bytes, by, false, true); !wrong.empty()) return wrong;
  for (uint32_t i = first; i < first + bytes / kWordBytes; ++i) ++words_[i].tensor_copies_in_flight;
  return {};
}

std::string SharedMemory::finish_tensor_copy(uint32_t address, uint32_t bytes, const void* data, const Accessor& by) {
  const uint32_t first = (address - kBase) / kWordBytes;
  for (uint32_t i = first; i < first + bytes / kWordBytes; ++i) --words_[i].tensor_copies_in_flight;
  if (std::string wrong = record_write(address, bytes, by, false, true); !wrong.empty()) return wrong;
  std::memcpy(&bytes_[address - kBase], data, bytes);
  return {};
}

std::string SharedMemory::begin_product_read(uint32_t address, uint32_t bytes, const Accessor& by) {
  if (std::string wrong = check_bounds(address, bytes); !wrong.empty()) return wrong;
  const uint32_t first = (address - kBase) / kWordBytes;
  for (uint32_t i = first; i < first + bytes / kWordBytes; ++i) {
    Word& word = words_[i];
    if (const char* occupied = word.occupied()) return occupied;
    if (word.copies_in_flight) return "reads shared memory that an unfinished cp.async is about to write";
    if (word.written && !happens_before(word.writer, by)) return race("write", kBase + i * kWordBytes, word.writer);
    if (std::string wrong = check_seen_by_async_proxy(i, by); !wrong.empty()) return wrong;
    ++word.product_reads_in_flight;
  }
  return {};
}

std::string SharedMemory::finish_product_read(uint32_t address, uint32_t bytes, void* out, const Accessor& by) {
  const uint32_t first = (address - kBase) / kWordBytes;
  const Event event{by.thread, (*by.clock)[by.thread], by.whole_warp, false, by.where};
  for (uint32_t i = first; i < first + bytes / kWordBytes; ++i) {
    Word& word = words_[i];
    --word.product_reads_in_flight;
    std::erase_if(word.readers, [&](const Event& reader) { return happens_before(reader, by); });
    word.readers.push_back(event);
  }
  std::memcpy(out, &bytes_[address - kBase], bytes);
  return {};
}

std::string SharedMemory::make_opaque(uint32_t address, uint32_t bytes, const Accessor& by) {
  if (std::string wrong = check_bounds(address, bytes); !wrong.empty()) return wrong;
  if (std::string wrong = record_write(address, bytes, by, false); !wrong.empty()) return wrong;
  for (uint32_t i = 0; i < bytes / kWordBytes; ++i) words_[(address - kBase) / kWordBytes + i].opaque = true;
  return {};
}

}  // namespace cudaprefill::emu
