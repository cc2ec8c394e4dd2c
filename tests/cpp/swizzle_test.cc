// The swizzle of the attention kernels' tiles in shared memory is the one that CuTe calls Swizzle<bits, base, shift>.
#include <cute/layout.hpp>
#include <cute/swizzle_layout.hpp>

#include "csrc/cuda/attention/tile.cuh"
#include "tests/cpp/check.h"

namespace cudaprefill {
namespace {

using cute::_1;
using cute::_8;
using cute::Int;

constexpr int kRows = 64;

// Offset of an element in the tile, in elements.
template <int head_size>
int offset_in_tile(int row, int column) {
  const SharedTile<head_size> tile{0};
  return static_cast<int>(tile.address(row, column / kChunkElements)) / 2 + column % kChunkElements;
}

template <int head_size, class Layout>
void check_is(const Layout& layout) {
  CHECK(cute::size(layout) == kRows * head_size);
  for (int row = 0; row < kRows; ++row) {
    for (int column = 0; column < head_size; ++column) {
      CHECK(offset_in_tile<head_size>(row, column) == static_cast<int>(layout(row, column)));
    }
  }
}

// Rows of one tile, each as long as the head size.
template <int head_size>
auto rows_of() {
  return cute::make_layout(cute::make_shape(Int<kRows>{}, Int<head_size>{}), cute::make_stride(Int<head_size>{}, _1{}));
}

// Rows of 128 bytes: the atom that CUTLASS itself uses for 16-bit operands, repeated downwards.
TEST(head_size_64_is_the_128_byte_atom_of_cute) {
  const auto atom = cute::composition(cute::Swizzle<3, 3, 3>{}, cute::make_layout(cute::make_shape(_8{}, Int<64>{}),
                                                                                  cute::make_stride(Int<64>{}, _1{})));
  check_is<64>(cute::tile_to_shape(atom, cute::make_shape(Int<kRows>{}, Int<64>{})));
}

// Longer rows: the same three bits of the chunk, exchanged by those of the row, which lie further up.
TEST(longer_powers_of_two_shift_further) {
  check_is<128>(cute::composition(cute::Swizzle<3, 3, 4>{}, rows_of<128>()));
  check_is<256>(cute::composition(cute::Swizzle<3, 3, 5>{}, rows_of<256>()));
}

// Rows that are no power of two long cannot be swizzled as a whole. Their chunks can: with room for 16 chunks a row,
// the swizzle says at which place of its row a chunk lies.
template <int head_size, class Swizzle>
void check_places(Swizzle swizzle) {
  for (int row = 0; row < kRows; ++row) {
    for (int chunk = 0; chunk < head_size / kChunkElements; ++chunk) {
      const int place = swizzle(row * 16 + chunk) % 16;
      CHECK(offset_in_tile<head_size>(row, chunk * kChunkElements) == row * head_size + place * kChunkElements);
    }
  }
}

TEST(other_head_sizes_swizzle_the_bits_that_their_length_leaves) {
  check_places<96>(cute::Swizzle<2, 0, 5>{});
  check_places<80>(cute::Swizzle<1, 0, 6>{});
}

}  // namespace
}  // namespace cudaprefill
