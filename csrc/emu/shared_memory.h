// The shared memory of one block: born as NaN, bounds-checked, with a race detector.
//
// The detector knows for every 4-byte word who wrote it last and who has read it since. Two accesses by different
// threads, one of them a write, are a race unless one happens before the other; the vector clocks of the threads, which
// barriers join, decide that.
#pragma once

#include <cstddef>
#include <cstdint>
#include <source_location>
#include <string>
#include <vector>

namespace cudaprefill::emu {

// clock[t]: how far into thread t's life this thread has looked, by way of barriers.
using VectorClock = std::vector<uint32_t>;

// Who makes an access. A warp-wide instruction (ldmatrix) reads on behalf of all of its lanes, in the name of one.
struct Accessor {
  uint32_t thread;
  bool whole_warp;
  const VectorClock* clock;
  std::source_location where;
};

class SharedMemory {
 public:
  static constexpr uint32_t kWordBytes = 4;
  // Shared addresses do not start at zero, so that an address computed from nothing is out of bounds.
  static constexpr uint32_t kBase = 1024;

  // Forgets everything and fills the memory with a pattern that is NaN in float32, bfloat16 and float16.
  void reset(size_t bytes);
  size_t size() const { return bytes_.size(); }

  // Each returns an empty string or what is wrong. Addresses must be multiples of `bytes`: 4, 8 or 16.
  std::string read(uint32_t address, uint32_t bytes, void* out, const Accessor& by);
  std::string write(uint32_t address, uint32_t bytes, const void* data, const Accessor& by);
  // Atomic accesses do not race with one another. The returned pointer is to the 32-bit word.
  std::string atomic(uint32_t address, const Accessor& by, uint32_t** word);

  // An asynchronous copy counts as a write when it is issued and as another when it lands; reads between are faults.
  std::string begin_copy(uint32_t address, uint32_t bytes, const Accessor& by);
  std::string finish_copy(uint32_t address, uint32_t bytes, const void* data, const Accessor& by);

 private:
  struct Event {
    uint32_t thread;
    uint32_t time;
    bool whole_warp;
    bool atomic;
    std::source_location where;
  };
  struct Word {
    bool written = false;
    uint16_t copies_in_flight = 0;
    Event writer;
    std::vector<Event> readers;
  };

  std::string check_bounds(uint32_t address, uint32_t bytes) const;
  std::string record_write(uint32_t address, uint32_t bytes, const Accessor& by, bool atomic);
  static bool happens_before(const Event& event, const Accessor& by);
  std::string race(const char* kind, uint32_t address, const Event& event) const;

  std::vector<uint8_t> bytes_;
  std::vector<Word> words_;
};

}  // namespace cudaprefill::emu
