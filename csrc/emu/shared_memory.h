// The shared memory of one block: born as NaN, bounds-checked, with a race detector.
//
// The detector knows for every 4-byte word who wrote it last and who has read it since. Two accesses by different
// threads, one of them a write, are a race unless one happens before the other; the vector clocks of the threads, which
// barriers join, decide that.
//
// wgmma and tensor copies reach shared memory through the asynchronous proxy. They see what an ordinary write has left
// only if its thread has gone through fence.proxy.async since, and if that fence happens before them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <source_location>
#include <string>
#include <utility>
#include <vector>

namespace cudaprefill::emu {

// clock[t]: how far into thread t's life this thread has looked, by way of barriers.
using VectorClock = std::vector<uint32_t>;

// Who makes an access. A warp-wide instruction (ldmatrix, wgmma) reads on behalf of all of its lanes, in the name of
// one. A tensor copy is made in the name of an agent (clock component) of its own.
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
  void reset(size_t bytes, size_t num_threads);
  size_t size() const { return bytes_.size(); }

  // Each returns an empty string or what is wrong. Addresses must be multiples of `bytes`: 4, 8 or 16.
  std::string read(uint32_t address, uint32_t bytes, void* out, const Accessor& by);
  std::string write(uint32_t address, uint32_t bytes, const void* data, const Accessor& by);
  // Atomic accesses do not race with one another. The returned pointer is to the 32-bit word.
  std::string atomic(uint32_t address, const Accessor& by, uint32_t** word);

  // An asynchronous copy counts as a write when it is issued and as another when it lands; reads between are faults.
  std::string begin_copy(uint32_t address, uint32_t bytes, const Accessor& by);
  std::string finish_copy(uint32_t address, uint32_t bytes, const void* data, const Accessor& by);

  // --- the asynchronous proxy --------------------------------------------------------------------------------------

  // As a copy, but by tensor copy: what an ordinary write left there must have been fenced.
  std::string begin_tensor_copy(uint32_t address, uint32_t bytes, const Accessor& by);
  std::string finish_tensor_copy(uint32_t address, uint32_t bytes, const void* data, const Accessor& by);

  // A read by wgmma: from the beginning on the memory must hold what is to be read, until the end nobody may write it.
  std::string begin_product_read(uint32_t address, uint32_t bytes, const Accessor& by);
  std::string finish_product_read(uint32_t address, uint32_t bytes, void* out, const Accessor& by);

  // The thread's writes up to now become visible to the asynchronous proxy.
  void fence_proxy(const Accessor& by) { fences_[by.thread].emplace_back(++sequence_, (*by.clock)[by.thread]); }

  // Memory of an mbarrier: no other access is allowed from now on.
  std::string make_opaque(uint32_t address, uint32_t bytes, const Accessor& by);

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
    bool opaque = false;
    bool async_writer = false;  // the writer was a tensor copy
    uint16_t copies_in_flight = 0, tensor_copies_in_flight = 0, product_reads_in_flight = 0;
    uint64_t sequence = 0;  // of the latest write
    Event writer;
    std::vector<Event> readers;

    // What stands against any ordinary access.
    const char* occupied() const {
      if (opaque) return "touches the memory of an mbarrier";
      if (tensor_copies_in_flight) return "touches shared memory that an unfinished tensor copy is about to write";
      return nullptr;
    }
  };

  std::string check_bounds(uint32_t address, uint32_t bytes) const;
  std::string record_write(uint32_t address, uint32_t bytes, const Accessor& by, bool atomic, bool async = false);
  std::string check_seen_by_async_proxy(uint32_t word, const Accessor& by) const;
  static bool happens_before(const Event& event, const Accessor& by);
  std::string race(const char* kind, uint32_t address, const Event& event) const;

  std::vector<uint8_t> bytes_;
  std::vector<Word> words_;
  uint64_t sequence_ = 0;                                           // counts writes and fences
  std::vector<std::vector<std::pair<uint64_t, uint32_t>>> fences_;  // of each thread: sequence, its own time
};

}  // namespace cudaprefill::emu
