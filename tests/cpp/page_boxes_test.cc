// Pages of 16 rows, brought by boxes of a tensor copy, are one uniform tile to the descriptors of wgmma; and the box
// that suggests itself is not. Every element of every tile is followed from global memory to the product.
#include <array>
#include <vector>

#include "csrc/cuda/attention/hopper/prefill_traits.h"
#include "csrc/emu/tensor_copies.h"
#include "csrc/emu/warpgroup_products.h"
#include "tests/cpp/check.h"

namespace cudaprefill {
namespace {

constexpr uint32_t kBase = 4096;  // of the tile
constexpr uint32_t kElementBytes = 2;

struct Element {
  int row, column;
  bool operator==(const Element&) const = default;
};

// Who lies where in shared memory, by 16-bit elements.
using Shared = std::vector<Element>;
constexpr Element kNobody{-1, -1};

// Lands a box of the page at `first_row` as the ISA says: dimensions innermost first, then swizzled by the address.
// `element_at` says what the box has at given places of its five dimensions.
template <class ElementAt>
void land(Shared& shared, uint32_t at, const std::array<uint32_t, 5>& box, ElementAt element_at) {
  uint32_t number = 0;
  std::array<uint32_t, 5> i;
  for (i[4] = 0; i[4] < box[4]; ++i[4])
    for (i[3] = 0; i[3] < box[3]; ++i[3])
      for (i[2] = 0; i[2] < box[2]; ++i[2])
        for (i[1] = 0; i[1] < box[1]; ++i[1])
          for (i[0] = 0; i[0] < box[0]; ++i[0]) {
            const uint32_t byte = emu::swizzled(at + number++ * kElementBytes, TensorSwizzle::k128Bytes);
            shared.at(byte / kElementBytes) = element_at(i);
          }
}

// A tile of pages by the box of PageBoxes: 64 elements, 8 rows, head size / 64, row groups.
template <int head_size>
Shared land_pages(int keys) {
  const PagedCache cache{nullptr, 4, 16 * head_size, 16 * head_size, head_size, nullptr};
  const TensorShape shape = PageBoxes::shape(cache, 1, kPageRows, head_size, 2);
  std::array<uint32_t, 5> box;
  for (int i = 0; i < 5; ++i) box[i] = shape.box[i];
  Shared shared((kBase + OperandTile<head_size>::bytes(keys)) / kElementBytes, kNobody);
  for (int page = 0; page < keys / kPageRows; ++page) {
    land(shared, kBase + OperandTile<head_size>::bytes(page * kPageRows), box, [&](const auto& i) {
      // What the strides of the map lead to, in a page whose rows follow one another.
      const uint64_t offset = i[0] * kElementBytes + i[1] * shape.stride_bytes[0] + i[2] * shape.stride_bytes[1] +
                              i[3] * shape.stride_bytes[2];
      const auto element = static_cast<int>(offset / kElementBytes);
      return Element{page * kPageRows + element / head_size, element % head_size};
    });
  }
  return shared;
}

Element at(const Shared& shared, uint32_t address) {
  return address % kElementBytes == 0 && address / kElementBytes < shared.size() ? shared[address / kElementBytes]
                                                                                 : kNobody;
}

// Whether K^T's descriptors, 16 elements a step, find every element of every key.
template <int head_size, class Descriptor>
bool keys_are_found(const Shared& shared, int keys, Descriptor descriptor_of_step) {
  for (int step = 0; step < head_size / 16; ++step) {
    const emu::MatrixDescriptor descriptor(descriptor_of_step(step));
    for (int key = 0; key < keys; ++key) {
      for (int i = 0; i < 16; ++i) {
        const uint32_t address = descriptor.row_chunk(key, i / 8) + i % 8 * kElementBytes;
        if (!(at(shared, address) == Element{key, step * 16 + i})) return false;
      }
    }
  }
  return true;
}

// The same of V's, 16 keys a step.
template <int head_size, class Descriptor>
bool values_are_found(const Shared& shared, int keys, Descriptor descriptor_of_step) {
  for (int step = 0; step < keys / 16; ++step) {
    const emu::MatrixDescriptor descriptor(descriptor_of_step(step));
    for (int i = 0; i < 16; ++i) {
      for (int column = 0; column < head_size; ++column) {
        const uint32_t address = descriptor.column_chunk(i, column / 8) + column % 8 * kElementBytes;
        if (!(at(shared, address) == Element{step * 16 + i, column})) return false;
      }
    }
  }
  return true;
}

template <int head_size>
void check_uniform() {
  constexpr int kKeys = HopperPrefillTraits<head_size>::kKeys;
  const OperandTile<head_size> tile{kBase};
  const Shared shared = land_pages<head_size>(kKeys);
  for (int row = 0; row < kKeys; ++row) {
    for (int column = 0; column < head_size; ++column) {
      const uint32_t address = tile.address(row, column / kChunkElements) + column % kChunkElements * kElementBytes;
      CHECK((at(shared, address) == Element{row, column}));
    }
  }
  CHECK(keys_are_found<head_size>(shared, kKeys, [&](int step) { return tile.along_elements(0, step); }));
  CHECK(values_are_found<head_size>(shared, kKeys, [&](int step) { return tile.along_rows(step); }));
}

TEST(pages_are_one_uniform_tile) {
  check_uniform<64>();
  check_uniform<128>();
  check_uniform<256>();
}

TEST(the_offsets_at_head_size_128_are_1024_and_2048) {
  const OperandTile<128> tile{kBase};
  const emu::MatrixDescriptor keys(tile.along_elements(0, 0)), values(tile.along_rows(0));
  CHECK(keys.stride == 2048 && keys.start == kBase && keys.base_offset == 0);
  CHECK(values.leading == 1024 && values.stride == 2048);
  CHECK(keys.swizzle == emu::MatrixDescriptor::Swizzle::k128Bytes);
  const Shared shared = land_pages<128>(128);
  for (const uint32_t wrong : {1024u, 2032u, 2064u, 4096u}) {
    CHECK(!keys_are_found<128>(
        shared, 128, [&](int step) { return matrix_descriptor(kBase + step / 4 * 1024 + step % 4 * 32, 0, wrong); }));
  }
}

// 64 elements x 16 rows x 2: whatever the stride and the start of each step, keys of two pages are not found.
TEST(the_box_of_16_rows_is_not_uniform) {
  constexpr int kKeys = 32;
  Shared shared((kBase + OperandTile<128>::bytes(kKeys)) / kElementBytes, kNobody);
  for (int page = 0; page < kKeys / kPageRows; ++page) {
    land(shared, kBase + OperandTile<128>::bytes(page * kPageRows), {64, 16, 2, 1, 1}, [&](const auto& i) {
      return Element{page * kPageRows + static_cast<int>(i[1]), static_cast<int>(i[2] * 64 + i[0])};
    });
  }
  const auto found_by = [&](int keys, uint32_t stride, uint32_t second_half) {
    return keys_are_found<128>(shared, keys, [&](int step) {
      return matrix_descriptor(kBase + step / 4 * second_half + step % 4 * 32, 0, stride);
    });
  };
  CHECK(found_by(kPageRows, 1024, 2048));  // one page alone would do
  for (uint32_t stride = 0; stride <= 16384; stride += 16) CHECK(!found_by(kKeys, stride, 2048));
}

TEST(rows_of_queries_begin_at_any_warpgroup) {
  constexpr int kRows = HopperPrefillTraits<128>::kRows;
  const OperandTile<128> tile{kBase};
  for (int first = 0; first < kRows; first += kWarpgroupRows) {
    for (int step = 0; step < 8; ++step) {
      const emu::MatrixDescriptor descriptor(tile.along_elements(first, step));
      for (int row = 0; row < kWarpgroupRows; ++row) {
        for (int chunk = 0; chunk < 2; ++chunk) {
          CHECK(descriptor.row_chunk(row, chunk) == tile.address(first + row, 2 * step + chunk));
        }
      }
    }
  }
}

}  // namespace
}  // namespace cudaprefill
