// What the emulated machine raises when a kernel breaks a rule: a message that names the kernel, the block, the thread
// and the source line.
#pragma once

#include <source_location>
#include <stdexcept>
#include <string>

namespace cudaprefill::emu {

class Fault : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// "prefill_attention.cuh:120", the directories left out.
std::string short_location(const std::source_location& where);

}  // namespace cudaprefill::emu
