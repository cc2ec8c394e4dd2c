// What the emulated device reads from a map that the emulated driver has made.
#pragma once

#include "csrc/cuda/tensor_map.h"

namespace cudaprefill::emu {

TensorShape shape_of(const TensorMap& map);

}  // namespace cudaprefill::emu
