// wgmma: what the warps have issued and no wait has finished yet.
//
// A product reads shared memory and writes its accumulators at the latest moment, when a wait asks for its batch. Until
// then the accumulators hold a NaN of a certain pattern: whoever reads them computes with it, whoever writes them is
// found out. Registers of A are taken when the product is issued, for a C++ variable is not a register: that they are
// left alone is up to the assembler, which says so if it cannot ("serialized").
//
// Each warp issues and waits on its own, out of step with the others of its warpgroup; that all issue the same is
// checked.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <source_location>
#include <string>
#include <vector>

#include "csrc/emu/shared_memory.h"

namespace cudaprefill::emu {

class Machine;

// A matrix descriptor of the PTX ISA, taken apart: offsets in bytes.
struct MatrixDescriptor {
  uint32_t start, leading, stride, base_offset;
  enum class Swizzle { kNone = 0, k128Bytes = 1, k64Bytes = 2, k32Bytes = 3 } swizzle;

  explicit MatrixDescriptor(uint64_t bits);
  // The shared address of eight neighbouring elements. K-major: `chunk` (0, 1) of 8 elements of row `outer`.
  uint32_t row_chunk(uint32_t outer, uint32_t chunk) const;
  // MN-major: `chunk` of 8 outer elements at row `inner` (0 to 15).
  uint32_t column_chunk(uint32_t inner, uint32_t chunk) const;

 private:
  uint32_t row_bytes() const;
  uint32_t apply_swizzle(uint32_t address) const;
};

// What one lane brings to a product.
struct ProductLane {
  float* accumulators;  // columns / 2
  const uint32_t* a;    // four registers, or null
};

struct ProductCall {
  int columns;
  bool half;                  // float16; otherwise bfloat16
  std::optional<uint64_t> a;  // descriptor; none where A is in registers
  uint64_t b;
  bool transposed;  // B is MN-major
  bool accumulate;

  bool operator==(const ProductCall&) const = default;
};

class WarpgroupProducts {
 public:
  static constexpr unsigned kLanes = 32;

  void reset(unsigned num_threads);
  void fence(Machine& machine, std::source_location where);
  void issue(Machine& machine, const ProductCall& call, const std::array<ProductLane, kLanes>& lanes,
             std::source_location where);
  void commit(Machine& machine, std::source_location where);
  void wait(Machine& machine, int pending, std::source_location where);

  // At the end of a block: products that nobody has waited for, or warps that did not issue what their neighbours did.
  std::string unfinished() const;

 private:
  struct Product {
    ProductCall call;
    std::array<float*, kLanes> accumulators;
    std::array<std::array<uint32_t, 4>, kLanes> a;
    VectorClock clock;  // when it was issued
    std::source_location where;
  };
  // Accumulators of a warp that unfinished products are to write.
  struct InFlight {
    std::vector<float> values[kLanes];
    unsigned products = 0;
  };
  struct Warp {
    bool fenced = false;
    size_t issued = 0;
    std::vector<Product> open;
    std::vector<std::vector<Product>> batches;  // oldest first
    std::map<std::array<float*, kLanes>, InFlight> in_flight;
  };

  template <class Visit>
  void for_each_operand_chunk(const ProductCall& call, Visit visit) const;
  void execute(Machine& machine, unsigned warp, const Product& product);

  std::vector<Warp> warps_;
  std::vector<std::vector<ProductCall>> issued_;  // by each warpgroup
};

}  // namespace cudaprefill::emu
