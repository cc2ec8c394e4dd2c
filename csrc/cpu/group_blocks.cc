#include <algorithm>
#include <cstring>

#include "csrc/cpu/gguf_blocks.h"
#include "csrc/cpu/kernels.h"
#include "csrc/cpu/parallel.h"

namespace cudaprefill::cpu {
namespace {

using gguf::kPartElements;

// Writes one row of a group; block_groups.h draws where everything goes.
class GroupRow {
 public:
  GroupRow(uint8_t* group, int64_t lane, int64_t num_inputs, BlockFormat format)
      : scales_(group),
        values_(group + group_bytes(format, num_inputs) - value_bytes(format, num_inputs)),
        lane_(lane),
        num_parts_(num_inputs / kPartElements) {}

  // The next two or one bytes of the scales, which come in rows of 16.
  void half(const uint8_t* from) {
    std::memcpy(scales_ + 2 * lane_, from, 2);
    scales_ += 2 * kGroupRows;
  }
  void byte(uint8_t value) {
    scales_[lane_] = value;
    scales_ += kGroupRows;
  }

  void bytes(int64_t part, const uint8_t (&q)[kPartElements]) {
    for (int step = 0; step < 8; ++step) std::memcpy(word(part * 8 + step), q + 4 * step, 4);
  }
  // The low four bits of each.
  void nibbles(int64_t part, const uint8_t (&q)[kPartElements]) {
    for (int i = 0; i < 16; ++i) {
      word(part * 4 + i / 4)[i % 4] = static_cast<uint8_t>((q[i] & 15) | (q[16 + i] & 15) << 4);
    }
  }
  // The two above these.
  void high_bits(int64_t part, const uint8_t (&q)[kPartElements]) {
    for (int i = 0; i < 8; ++i) {
      const auto high = [&](int step) { return (q[16 * (i / 4) + 4 * step + i % 4] >> 4 & 3) << 2 * step; };
      word(num_parts_ * 4 + part * 2 + i / 4)[i % 4] = static_cast<uint8_t>(high(0) | high(1) | high(2) | high(3));
    }
  }

 private:
  static int64_t value_bytes(BlockFormat format, int64_t num_inputs) {
    const int bits = format == BlockFormat::kQ8_0 ? 8 : format == BlockFormat::kQ6_K ? 6 : 4;
    return kGroupRows * num_inputs * bits / 8;
  }
  uint8_t* word(int64_t row) { return values_ + (row * kGroupRows + lane_) * 4; }

  uint8_t* scales_;
  uint8_t* values_;
  int64_t lane_, num_parts_;
};

void group_row(const uint8_t* block, int64_t num_inputs, BlockFormat format, GroupRow row) {
  const BlockShape shape = block_shape(format);
  uint8_t q[kPartElements];
  for (int64_t k = 0; k < num_inputs; k += shape.elements, block += shape.bytes) {
    switch (format) {
      case BlockFormat::kQ4_0:
        row.half(block);
        gguf::Q4_0::quants(block, 0, q);
        row.nibbles(k / kPartElements, q);
        break;
      case BlockFormat::kQ4_1:
        row.half(block);
        row.half(block + 2);
        gguf::Q4_1::quants(block, 0, q);
        row.nibbles(k / kPartElements, q);
        break;
      case BlockFormat::kQ8_0:
        row.half(block);
        gguf::Q8_0::quants(block, 0, q);
        row.bytes(k / kPartElements, q);
        break;
      case BlockFormat::kQ4_K:
        row.half(block);
        row.half(block + 2);
        for (int part = 0; part < 8; ++part) row.byte(gguf::Q4_K::scale(block, part));
        for (int part = 0; part < 8; ++part) row.byte(gguf::Q4_K::minimum(block, part));
        for (int part = 0; part < 8; ++part) {
          gguf::Q4_K::quants(block, part, q);
          row.nibbles(k / kPartElements + part, q);
        }
        break;
      case BlockFormat::kQ6_K:
        row.half(block + 208);
        for (int i = 0; i < 16; ++i) row.byte(block[192 + i]);
        for (int part = 0; part < 8; ++part) {
          gguf::Q6_K::quants(block, part, q);
          row.nibbles(k / kPartElements + part, q);
          row.high_bits(k / kPartElements + part, q);
        }
        break;
      case BlockFormat::kNone:
        return;
    }
  }
}

}  // namespace

void group_blocks(const GroupBlocksParams& params) {
  const int64_t num_groups = (params.num_rows + kGroupRows - 1) / kGroupRows;
  parallel_for(num_groups, grain_of(kGroupRows * params.num_inputs), [&](int64_t begin, int64_t end) {
    for (int64_t g = begin; g < end; ++g) {
      uint8_t* group = params.groups + g * params.group_stride;
      const int64_t rows = std::min(kGroupRows, params.num_rows - g * kGroupRows);
      if (rows < kGroupRows) std::memset(group, 0, group_bytes(params.block_format, params.num_inputs));
      for (int64_t lane = 0; lane < rows; ++lane) {
        group_row(params.blocks + (g * kGroupRows + lane) * params.block_stride, params.num_inputs, params.block_format,
                  GroupRow(group, lane, params.num_inputs, params.block_format));
      }
    }
  });
}

}  // namespace cudaprefill::cpu
