// The tiles that wgmma reads lie as CuTe's canonical layouts with 128-byte swizzle do, K-major and MN-major at once.
#include <cute/arch/mma_sm90_desc.hpp>
#include <cute/atom/mma_traits_sm90_gmma.hpp>
#include <cute/layout.hpp>
#include <cute/swizzle_layout.hpp>

#include "csrc/cuda/attention/hopper/prefill_traits.h"
#include "tests/cpp/check.h"

namespace cudaprefill {
namespace {

using cute::Int;
using Bits = uint16_t;
namespace gmma = cute::SM90::GMMA;

template <int head_size>
void check_tile() {
  constexpr int kKeys = HopperPrefillTraits<head_size>::kKeys;
  // Bricks side by side along the elements first, then along the keys. CuTe's atoms swizzle addresses; offsets are
  // asked for here.
  const auto offsets = [](auto atom, auto shape, auto order) {
    return cute::as_position_independent_swizzle_layout(cute::tile_to_shape(atom, shape, order));
  };
  const auto k_major = offsets(gmma::Layout_K_SW128_Atom<Bits>{}, cute::make_shape(Int<kKeys>{}, Int<head_size>{}),
                               cute::Step<cute::_2, cute::_1>{});
  const auto mn_major = offsets(gmma::Layout_MN_SW128_Atom<Bits>{}, cute::make_shape(Int<head_size>{}, Int<kKeys>{}),
                                cute::Step<cute::_1, cute::_2>{});
  const OperandTile<head_size> tile{0};
  for (int key = 0; key < kKeys; ++key) {
    for (int element = 0; element < head_size; ++element) {
      const int offset = static_cast<int>(tile.address(key, element / kChunkElements)) / 2 + element % kChunkElements;
      CHECK(offset == static_cast<int>(k_major(key, element)));
      CHECK(offset == static_cast<int>(mn_major(element, key)));
    }
  }
}

TEST(a_tile_is_canonical_both_ways) {
  check_tile<64>();
  check_tile<128>();
  check_tile<256>();
}

TEST(the_fields_of_a_descriptor_are_those_of_cute) {
  cute::GmmaDescriptor expected;
  expected.bitfield.start_address_ = 0x5430 >> 4;
  expected.bitfield.leading_byte_offset_ = 1024 >> 4;
  expected.bitfield.stride_byte_offset_ = 2048 >> 4;
  expected.bitfield.layout_type_ = static_cast<uint8_t>(gmma::LayoutType::B128);
  CHECK(matrix_descriptor(0x5430, 1024, 2048) == static_cast<uint64_t>(expected));
}

}  // namespace
}  // namespace cudaprefill
