// The emulated kernels as a backend of torch.
#pragma once

#include <string>

namespace cudaprefill::emu {

// Registers the kernels for CPU tensors in the torch library `library`, whose ops must be defined. Once a module.
void register_emulated(const std::string& library);

}  // namespace cudaprefill::emu
