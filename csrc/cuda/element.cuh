// The 16-bit number formats, and the 8-bit one of caches. They are storage only: arithmetic is in float32, conversion
// in ptx/convert.cuh.
#pragma once

#include <cstdint>

namespace cudaprefill {

struct BFloat16 {
  uint16_t bits;
};

struct Half {
  uint16_t bits;
};

// e4m3: four bits of exponent, three of mantissa, no infinity; the largest number is 448.
struct Float8 {
  uint8_t bits;
};

}  // namespace cudaprefill
