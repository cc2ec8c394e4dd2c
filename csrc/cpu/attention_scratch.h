// Working memory of one thread, kept from call to call so that a short call allocates nothing.
#pragma once

#include <cstdint>

namespace cudaprefill::cpu {

// At least `count` floats on a cache line boundary, with undefined contents, until this thread asks again.
float* thread_scratch(int64_t count);

// Hands out consecutive parts of such memory, each on a cache line boundary.
class ScratchParts {
 public:
  static constexpr int64_t kLine = 16;  // floats
  static constexpr int64_t rounded(int64_t count) { return (count + kLine - 1) / kLine * kLine; }

  explicit ScratchParts(float* memory) : next_(memory) {}

  float* take(int64_t count) {
    float* part = next_;
    next_ += rounded(count);
    return part;
  }

 private:
  float* next_;
};

}  // namespace cudaprefill::cpu
