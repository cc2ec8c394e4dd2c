#include "csrc/cpu/attention_scratch.h"

#include <cstdlib>
#include <memory>
#include <new>

namespace cudaprefill::cpu {
namespace {

constexpr size_t kLineBytes = ScratchParts::kLine * sizeof(float);

struct Free {
  void operator()(float* memory) const { std::free(memory); }
};

}  // namespace

float* thread_scratch(int64_t count) {
  thread_local std::unique_ptr<float, Free> memory;
  thread_local int64_t capacity = 0;
  if (count > capacity) {
    memory.reset();
    capacity = 0;
    memory.reset(static_cast<float*>(std::aligned_alloc(kLineBytes, ScratchParts::rounded(count) * sizeof(float))));
    if (!memory) throw std::bad_alloc();
    capacity = count;
  }
  return memory.get();
}

}  // namespace cudaprefill::cpu
