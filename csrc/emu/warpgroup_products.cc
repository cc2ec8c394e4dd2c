#include "csrc/emu/warpgroup_products.h"

#include <bit>
#include <cstring>
#include <ptx/convert.cuh>

#include "csrc/cuda/element.cuh"
#include "csrc/emu/fault.h"
#include "csrc/emu/machine.h"

namespace cudaprefill::emu {
namespace {

constexpr uint32_t kInFlightPattern = 0x7fc0dead;  // a quiet NaN
constexpr uint32_t kChunkBytes = 16, kChunkElements = 8;
constexpr int kInner = 16, kRowsOfWarp = 16;
constexpr unsigned kWarpsOfGroup = 4;

uint32_t field(uint64_t bits, int shift, int width) {
  return static_cast<uint32_t>(bits >> shift & ((uint64_t{1} << width) - 1));
}

void unpack_pair(bool half, uint32_t pair, float& low, float& high) {
  half ? ptx::unpack<Half>(pair, low, high) : ptx::unpack<BFloat16>(pair, low, high);
}

}  // namespace

// Bits 0-13 start, 16-29 leading and 32-45 stride byte offset, each without its lowest four bits; 49-51 base offset;
// 62-63 swizzle.
MatrixDescriptor::MatrixDescriptor(uint64_t bits)
    : start(field(bits, 0, 14) << 4),
      leading(field(bits, 16, 14) << 4),
      stride(field(bits, 32, 14) << 4),
      base_offset(field(bits, 49, 3)),
      swizzle(static_cast<Swizzle>(field(bits, 62, 2))) {}

uint32_t MatrixDescriptor::row_bytes() const {
  constexpr uint32_t kBytes[] = {16, 128, 64, 32};
  return kBytes[static_cast<int>(swizzle)];
}

// Chunks (bits 4 up) are exchanged by the rows of 128 bytes (bits 7 up), which count from where the pattern begins.
uint32_t MatrixDescriptor::apply_swizzle(uint32_t address) const {
  const uint32_t mask = row_bytes() / kChunkBytes - 1;
  return address ^ ((((address >> 7) - base_offset) & mask) << 4);
}

// Groups of eight rows, as long as the swizzle spans, follow one another by the stride. Without a swizzle a row of the
// group is one chunk, and the second chunk lies further by the leading offset.
uint32_t MatrixDescriptor::row_chunk(uint32_t outer, uint32_t chunk) const {
  const uint32_t to_chunk = swizzle == Swizzle::kNone ? leading : kChunkBytes;
  return apply_swizzle(start + outer / 8 * stride + outer % 8 * row_bytes() + chunk * to_chunk);
}

// Eight inner rows, as long as the swizzle spans, are a group. The next eight rows follow by the stride, the next outer
// elements by the leading offset; without a swizzle the two change places.
uint32_t MatrixDescriptor::column_chunk(uint32_t inner, uint32_t chunk) const {
  const uint32_t chunks_of_row = row_bytes() / kChunkBytes;
  const uint32_t to_rows = swizzle == Swizzle::kNone ? leading : stride;
  const uint32_t to_chunks = swizzle == Swizzle::kNone ? stride : leading;
  return apply_swizzle(start + inner / 8 * to_rows + inner % 8 * row_bytes() + chunk / chunks_of_row * to_chunks +
                       chunk % chunks_of_row * kChunkBytes);
}

void WarpgroupProducts::reset(unsigned num_threads) {
  warps_.assign((num_threads + kLanes - 1) / kLanes, {});
  issued_.assign((warps_.size() + kWarpsOfGroup - 1) / kWarpsOfGroup, {});
}

void WarpgroupProducts::fence(Machine& machine, std::source_location where) {
  machine.require_hopper("wgmma.fence", where);
  warps_[machine.current().warp()].fenced = true;
}

// The ISA does not say which warp reads which rows of A, so each of them counts as reading all.
template <class Visit>
void WarpgroupProducts::for_each_operand_chunk(const ProductCall& call, Visit visit) const {
  if (call.a) {
    const MatrixDescriptor a(*call.a);
    for (unsigned row = 0; row < kWarpsOfGroup * kRowsOfWarp; ++row) {
      for (unsigned chunk = 0; chunk < 2; ++chunk) visit(a.row_chunk(row, chunk), false);
    }
  }
  const MatrixDescriptor b(call.b);
  if (call.transposed) {
    for (unsigned inner = 0; inner < kInner; ++inner) {
      for (unsigned chunk = 0; chunk < call.columns / kChunkElements; ++chunk)
        visit(b.column_chunk(inner, chunk), true);
    }
  } else {
    for (int column = 0; column < call.columns; ++column) {
      for (unsigned chunk = 0; chunk < 2; ++chunk) visit(b.row_chunk(column, chunk), true);
    }
  }
}

void WarpgroupProducts::issue(Machine& machine, const ProductCall& call, const std::array<ProductLane, kLanes>& lanes,
                              std::source_location where) {
  machine.require_hopper("wgmma.mma_async", where);
  const unsigned index = machine.current().warp();
  Warp& warp = warps_[index];
  if (warps_.size() % kWarpsOfGroup != 0) machine.fail("wgmma in a block that is not made of whole warpgroups", where);
  if (!warp.fenced) machine.fail("wgmma: a batch begins without wgmma.fence", where);

  auto& of_group = issued_[index / kWarpsOfGroup];
  if (warp.issued == of_group.size()) of_group.push_back(call);
  if (!(of_group[warp.issued] == call)) {
    machine.fail("divergent warpgroup: this wgmma is not the one that another warp has issued as its number " +
                     std::to_string(warp.issued),
                 where);
  }
  ++warp.issued;
  ++machine.counters().products;

  const Accessor by = machine.accessor(where, /*whole_warp=*/true);
  for_each_operand_chunk(call, [&](uint32_t address, bool) {
    const std::string wrong = machine.shared_memory().begin_product_read(address, kChunkBytes, by);
    if (!wrong.empty()) machine.fail("wgmma: " + wrong, where);
  });

  Product product{call, {}, {}, machine.current().clock, where};
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    product.accumulators[lane] = lanes[lane].accumulators;
    if (lanes[lane].a) std::memcpy(product.a[lane].data(), lanes[lane].a, sizeof(product.a[lane]));
  }
  InFlight& in_flight = warp.in_flight[product.accumulators];
  if (in_flight.products++ == 0) {
    for (unsigned lane = 0; lane < kLanes; ++lane) {
      float* registers = product.accumulators[lane];
      in_flight.values[lane].assign(registers, registers + call.columns / 2);
      std::fill_n(registers, call.columns / 2, std::bit_cast<float>(kInFlightPattern));
    }
  }
  warp.open.push_back(std::move(product));
}

void WarpgroupProducts::commit(Machine& machine, std::source_location where) {
  machine.require_hopper("wgmma.commit_group", where);
  Warp& warp = warps_[machine.current().warp()];
  warp.batches.push_back(std::move(warp.open));
  warp.open.clear();
  warp.fenced = false;
}

void WarpgroupProducts::wait(Machine& machine, int pending, std::source_location where) {
  machine.require_hopper("wgmma.wait_group", where);
  const unsigned index = machine.current().warp();
  Warp& warp = warps_[index];
  while (warp.batches.size() > static_cast<size_t>(pending)) {
    for (const Product& product : warp.batches.front()) execute(machine, index, product);
    warp.batches.erase(warp.batches.begin());
  }
}

void WarpgroupProducts::execute(Machine& machine, unsigned index, const Product& product) {
  const ProductCall& call = product.call;
  std::vector<uint16_t> a_elements, b_elements;
  const Accessor by = machine.accessor(product.where, /*whole_warp=*/true);
  for_each_operand_chunk(call, [&](uint32_t address, bool is_b) {
    std::vector<uint16_t>& elements = is_b ? b_elements : a_elements;
    elements.resize(elements.size() + kChunkElements);
    const std::string wrong = machine.shared_memory().finish_product_read(
        address, kChunkBytes, elements.data() + elements.size() - kChunkElements, by);
    if (!wrong.empty()) machine.fail("wgmma: " + wrong, product.where);
  });

  const auto to_float = [&](uint16_t bits) {
    float low, high;
    unpack_pair(call.half, bits, low, high);
    return low;
  };
  float a[kRowsOfWarp][kInner];
  if (call.a) {
    const uint16_t* rows = &a_elements[index % kWarpsOfGroup * kRowsOfWarp * kInner];
    for (int i = 0; i < kRowsOfWarp * kInner; ++i) a[i / kInner][i % kInner] = to_float(rows[i]);
  } else {
    for (unsigned lane = 0; lane < kLanes; ++lane) {
      const unsigned g = lane / 4, t = lane % 4;
      for (unsigned i = 0; i < 4; ++i) {
        const unsigned row = g + 8 * (i % 2), k = 2 * t + 8 * (i / 2);
        unpack_pair(call.half, product.a[lane][i], a[row][k], a[row][k + 1]);
      }
    }
  }
  std::vector<float> b(kInner * call.columns);  // [inner, columns]
  for (size_t i = 0; i < b_elements.size(); ++i) {
    const size_t at = call.transposed ? i : i % kInner * call.columns + i / kInner;
    b[at] = to_float(b_elements[i]);
  }
  std::vector<float> sums(kRowsOfWarp * call.columns, 0.0f);
  for (int row = 0; row < kRowsOfWarp; ++row) {
    float* to = &sums[row * call.columns];
    for (int k = 0; k < kInner; ++k) {
      const float factor = a[row][k];
      const float* from = &b[k * call.columns];
      for (int column = 0; column < call.columns; ++column) to[column] += factor * from[column];
    }
  }

  InFlight& in_flight = warps_[index].in_flight.at(product.accumulators);
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    const unsigned g = lane / 4, t = lane % 4;
    for (int i = 0; i < call.columns / 2; ++i) {
      const unsigned row = g + 8 * (i / 2 % 2), column = i / 4 * 8 + 2 * t + i % 2;
      float& value = in_flight.values[lane][i];
      value = sums[row * call.columns + column] + (call.accumulate ? value : 0.0f);
    }
  }
  if (--in_flight.products > 0) return;
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    float* registers = product.accumulators[lane];
    for (int i = 0; i < call.columns / 2; ++i) {
      if (std::bit_cast<uint32_t>(registers[i]) != kInFlightPattern) {
        machine.fail("wgmma: an accumulator was written while the product was unfinished", product.where);
      }
      registers[i] = in_flight.values[lane][i];
    }
  }
  warps_[index].in_flight.erase(product.accumulators);
}

std::string WarpgroupProducts::unfinished() const {
  for (unsigned index = 0; index < warps_.size(); ++index) {
    const Warp& warp = warps_[index];
    if (!warp.open.empty() || !warp.batches.empty()) {
      const Product& product = warp.batches.empty() ? warp.open.front() : warp.batches.front().front();
      return "the block has ended, and warp " + std::to_string(index) + " has not waited for its wgmma at " +
             short_location(product.where);
    }
    if (const size_t of_group = issued_[index / kWarpsOfGroup].size(); warp.issued != of_group) {
      return "divergent warpgroup: warp " + std::to_string(index) + " has issued " + std::to_string(warp.issued) +
             " wgmma, another one " + std::to_string(of_group);
    }
  }
  return {};
}

}  // namespace cudaprefill::emu
