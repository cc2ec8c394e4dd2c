#include <array>
#include <bitset>
#include <cstring>
#include <ptx/convert.cuh>
#include <ptx/matrix.cuh>
#include <string>

namespace cudaprefill::ptx {
namespace {

using emu::kWarpSize;
using emu::Machine;

struct MatrixLoad {
  uint32_t address;
  uint32_t* out;
  const std::source_location* where;
};

constexpr int kRowBytes = 16;   // eight 16-bit elements
constexpr int kBankGroups = 8;  // 32 banks of 4 bytes, taken 16 bytes at a time

using Matrix = std::array<std::array<uint16_t, 8>, 8>;

// The eight rows of one matrix are one access of the hardware: it takes longer when two rows lie in one bank group.
void count_conflicts(Machine& machine, const std::array<void*, kWarpSize>& lanes, unsigned matrix) {
  std::bitset<kBankGroups> used;
  for (unsigned row = 0; row < 8; ++row) {
    used.set(static_cast<MatrixLoad*>(lanes[matrix * 8 + row])->address / kRowBytes % kBankGroups);
  }
  ++machine.counters().matrix_loads;
  machine.counters().matrix_load_conflicts += used.count() < 8;
}

Matrix read_matrix(Machine& machine, const std::array<void*, kWarpSize>& lanes, unsigned matrix) {
  Matrix rows;
  for (unsigned row = 0; row < 8; ++row) {
    const auto& load = *static_cast<MatrixLoad*>(lanes[matrix * 8 + row]);
    const std::string wrong = machine.shared_memory().read(load.address, kRowBytes, rows[row].data(),
                                                           machine.accessor(*load.where, /*whole_warp=*/true));
    if (!wrong.empty()) machine.fail("ldmatrix: " + wrong, *load.where);
  }
  return rows;
}

template <bool transposed>
void execute_load(Machine& machine, const std::array<void*, kWarpSize>& lanes) {
  for (unsigned m = 0; m < 4; ++m) {
    count_conflicts(machine, lanes, m);
    const Matrix matrix = read_matrix(machine, lanes, m);
    for (unsigned lane = 0; lane < kWarpSize; ++lane) {
      const unsigned g = lane / 4, t = lane % 4;
      const uint16_t low = transposed ? matrix[2 * t][g] : matrix[g][2 * t];
      const uint16_t high = transposed ? matrix[2 * t + 1][g] : matrix[g][2 * t + 1];
      static_cast<MatrixLoad*>(lanes[lane])->out[m] = low | uint32_t{high} << 16;
    }
  }
}

struct MatrixProduct {
  float* c;
  const uint32_t* a;
  uint32_t b[2];
};

template <class Element>
void execute_product(Machine&, const std::array<void*, kWarpSize>& lanes) {
  float a[16][16], b[16][8];
  for (unsigned lane = 0; lane < kWarpSize; ++lane) {
    const unsigned g = lane / 4, t = lane % 4;
    const auto& part = *static_cast<MatrixProduct*>(lanes[lane]);
    for (unsigned i = 0; i < 4; ++i) {
      const unsigned row = g + 8 * (i % 2), k = 2 * t + 8 * (i / 2);
      unpack<Element>(part.a[i], a[row][k], a[row][k + 1]);
    }
    for (unsigned i = 0; i < 2; ++i) unpack<Element>(part.b[i], b[2 * t + 8 * i][g], b[2 * t + 8 * i + 1][g]);
  }
  float product[16][8] = {};
  for (unsigned row = 0; row < 16; ++row) {
    for (unsigned k = 0; k < 16; ++k) {
      for (unsigned column = 0; column < 8; ++column) product[row][column] += a[row][k] * b[k][column];
    }
  }
  for (unsigned lane = 0; lane < kWarpSize; ++lane) {
    const unsigned g = lane / 4, t = lane % 4;
    float* c = static_cast<MatrixProduct*>(lanes[lane])->c;
    for (unsigned i = 0; i < 4; ++i) c[i] += product[g + 8 * (i / 2)][2 * t + i % 2];
  }
}

constexpr uint32_t kFullWarp = 0xffffffff;

}  // namespace

void load_matrices(uint32_t address, uint32_t (&out)[4], std::source_location where) {
  MatrixLoad load{address, out, &where};
  Machine::instance().warp_operation("ldmatrix", kFullWarp, &load, execute_load<false>, where);
}

void load_matrices_transposed(uint32_t address, uint32_t (&out)[4], std::source_location where) {
  MatrixLoad load{address, out, &where};
  Machine::instance().warp_operation("ldmatrix.trans", kFullWarp, &load, execute_load<true>, where);
}

template <class Element>
void multiply_accumulate(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, std::source_location where) {
  MatrixProduct part{c, a, {b0, b1}};
  Machine::instance().warp_operation("mma.sync", kFullWarp, &part, execute_product<Element>, where);
}

template void multiply_accumulate<BFloat16>(float (&)[4], const uint32_t (&)[4], uint32_t, uint32_t,
                                            std::source_location);
template void multiply_accumulate<Half>(float (&)[4], const uint32_t (&)[4], uint32_t, uint32_t, std::source_location);

}  // namespace cudaprefill::ptx
