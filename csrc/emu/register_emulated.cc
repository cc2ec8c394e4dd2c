#include "csrc/emu/register_emulated.h"

#include <torch/csrc/stable/library.h>

#include "csrc/emu/backend.h"
#include "csrc/ops/register_ops.h"

namespace cudaprefill::emu {

void register_emulated(const std::string& library) {
  // What the macros of torch/csrc/stable/library.h make, but with a name that is known only now. The registration lasts
  // as long as the process, as one by macro does.
  using torch::stable::detail::StableLibrary;
  static StableLibrary registration(StableLibrary::Kind::IMPL, library.c_str(), "CPU", __FILE__, __LINE__);
  ops::register_ops<EmulatedBackend>(registration);
}

}  // namespace cudaprefill::emu
