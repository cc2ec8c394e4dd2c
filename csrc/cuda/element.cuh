// The 16-bit number formats. They are storage only: arithmetic is in float32, conversion in ptx/convert.cuh.
#pragma once

#include <cstdint>

namespace cudaprefill {

struct BFloat16 {
  uint16_t bits;
};

struct Half {
  uint16_t bits;
};

}  // namespace cudaprefill
