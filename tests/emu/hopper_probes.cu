// Small kernels of Hopper's instructions that keep or break one rule each; the tests beside it say what must
// happen.
#include <cuda_runtime.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <launch.cuh>
#include <optional>
#include <ptx/barrier.cuh>
#include <ptx/mbarrier.cuh>
#include <ptx/memory.cuh>
#include <ptx/tensor_copy.cuh>
#include <ptx/warpgroup.cuh>
#include <ptx/warpgroup_matrix.cuh>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "csrc/emu/fault.h"

namespace cudaprefill {
namespace {

namespace py = pybind11;
template <class T>
using Array = py::array_t<T, py::array::c_style>;

constexpr uint32_t kDataAt = 1024;  // of shared memory, after the mbarriers

uint32_t byte(uint32_t offset) { return ptx::shared_base() + offset; }
uint32_t word(uint32_t index) { return byte(kDataAt + 4 * index); }

uint32_t load(uint32_t address) {
  uint32_t value;
  ptx::load_shared(address, value);
  return value;
}

// --- mbarrier
// ---------------------------------------------------------------------------------------------------------

struct Probe {
  uint32_t* out;
  int choice;
};

// Two warps. The first produces a word a lane, twice; the second consumes it; "full" and "empty" are mbarriers of 32.
void mbarrier_ring(Probe p) {
  const uint32_t full = byte(0), empty = byte(8);
  const unsigned lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(full, 32);
    ptx::mbarrier_init(empty, p.choice == 5 ? 33 : 32);
  }
  if (p.choice != 3) __syncthreads();
  for (unsigned round = 0; round < 3; ++round) {
    const uint32_t parity = round % 2;
    if (threadIdx.x < 32) {
      if (p.choice != 1) ptx::mbarrier_wait(empty, parity ^ 1);
      ptx::store_shared(word(lane), 100 * round + lane);
      ptx::mbarrier_arrive(full);
    } else {
      ptx::mbarrier_wait(full, p.choice == 2 ? parity ^ 1 : parity);
      ptx::store_global(p.out + 32 * round + lane, load(word((lane + 1) % 32)));
      ptx::mbarrier_arrive(empty);
    }
  }
}

void mbarrier_misuse(Probe p) {
  const uint32_t barrier = byte(0);
  if (p.choice == 0) ptx::mbarrier_arrive(barrier);   // never initialised
  if (p.choice == 1) ptx::mbarrier_init(barrier, 0);  // nobody comes
  ptx::mbarrier_init(barrier, 2);
  if (p.choice == 2) ptx::mbarrier_init(barrier, 2);
  if (p.choice == 3) ptx::store_shared(barrier, 0u);  // is no ordinary memory
  if (p.choice == 4) {                                // arrivals beyond the count
    ptx::mbarrier_arrive_expecting(barrier, 16);
    ptx::mbarrier_arrive(barrier);
    ptx::mbarrier_arrive(barrier);
  }
  if (p.choice == 5) {  // bytes that nobody brings
    ptx::mbarrier_arrive_expecting(barrier, 48);
    ptx::mbarrier_arrive(barrier);
    ptx::mbarrier_wait(barrier, 0);
  }
  if (p.choice == 6) ptx::mbarrier_init(barrier + 4, 1);  // not a multiple of 8
  if (p.choice == 7) ptx::mbarrier_arrive_expecting(barrier, 1 << 20);
}

// --- tensor copies
// ----------------------------------------------------------------------------------------------------

struct TensorProbe {
  TensorMap map;
  std::array<int, 5> first;
  uint32_t bytes;  // of the box
  uint32_t* source;
  uint32_t* out;
  int choice;
};

// One warp copies one box to kDataAt and writes out the shared memory from there on.
void tensor_copy(TensorProbe p) {
  const uint32_t full = byte(0);
  const unsigned lane = threadIdx.x;
  if (lane == 0) {
    ptx::mbarrier_init(full, 1);
    if (p.choice != 1) ptx::fence_mbarrier_init();
  }
  if (p.choice == 2 || p.choice == 3) {  // an ordinary write first
    ptx::store_shared(word(lane), lane);
    if (p.choice == 3) ptx::fence_proxy_async();
  }
  __syncwarp();
  if (lane == 0) {
    ptx::mbarrier_arrive_expecting(full, p.bytes);
    const int first[5] = {p.first[0], p.first[1], p.first[2], p.first[3], p.first[4]};
    ptx::copy_tensor_async(byte(p.choice == 4 ? kDataAt + 128 : kDataAt), p.map, first, full);
    if (p.choice == 5) ptx::store_global(p.source, 0xabcdabcdu);  // before anyone waits
  }
  __syncwarp();
  if (p.choice == 6) return;  // the block ends first
  if (p.choice != 7) ptx::mbarrier_wait(full, p.choice == 8 ? 1 : 0);
  if (p.choice == 9 && lane == 0) ptx::store_shared(word(0), 7u);
  for (uint32_t i = lane; i < p.bytes / 4; i += 32) ptx::store_global(p.out + i, load(word(i)));
}

// A box while a thread that is not told of it still reads what lies there (choice 0), or is (choice 1).
void tensor_copy_over_reader(TensorProbe p) {
  const uint32_t full = byte(0), empty = byte(8);
  if (threadIdx.x == 0) {
    ptx::mbarrier_init(full, 1);
    ptx::mbarrier_init(empty, 32);
    ptx::fence_mbarrier_init();
  }
  ptx::store_shared(word(threadIdx.x), threadIdx.x);
  ptx::fence_proxy_async();
  __syncthreads();
  if (threadIdx.x >= 32) {
    ptx::store_global(p.out, load(word(threadIdx.x - 32)));
    ptx::mbarrier_arrive(empty);
  } else {
    if (p.choice == 1) ptx::mbarrier_wait(empty, 0);
    if (threadIdx.x == 0) {
      ptx::mbarrier_arrive_expecting(full, p.bytes);
      const int first[5] = {};
      ptx::copy_tensor_async(byte(kDataAt), p.map, first, full);
    }
    ptx::mbarrier_wait(full, 0);
  }
}

// --- wgmma
// ------------------------------------------------------------------------------------------------------------

struct ProductProbe {
  const uint32_t* image;  // what shared memory holds from kDataAt on
  uint32_t words;
  const uint32_t* fragments;  // [128 threads, 4]: A, unless it has a descriptor
  uint64_t a, b;
  uint32_t* out;  // [128 threads, columns / 2] as float32 bits
  int choice;
};

// One warpgroup: C = A B, then C += A B, with C at first 1 where choice is 1 and the product accumulates.
template <class Element, int columns, bool shared, bool transposed>
void product(ProductProbe p) {
  for (uint32_t i = threadIdx.x; i < p.words; i += 128) ptx::store_shared(word(i), ptx::load_global(p.image + i));
  if (p.choice != 2) ptx::fence_proxy_async();
  if (p.choice != 3) __syncthreads();
  uint32_t a[4] = {};
  if (!shared) {
    for (int i = 0; i < 4; ++i) a[i] = ptx::load_global(p.fragments + 4 * threadIdx.x + i);
  }
  float c[columns / 8][4];
  for (auto& tile : c) std::fill(std::begin(tile), std::end(tile), 1.0f);
  const auto multiply = [&](bool accumulate) {
    if constexpr (shared) {
      ptx::multiply_shared<Element, transposed>(c, p.a, p.b, accumulate);
    } else {
      ptx::multiply_registers<Element, transposed>(c, a, p.b, accumulate);
    }
  };
  if (p.choice != 5) ptx::fence_products();
  multiply(p.choice == 1);
  if (p.choice == 6 && threadIdx.x >= 96) multiply(true);  // one warp more than the others
  ptx::commit_products();
  if (p.choice == 7) ptx::store_shared(word(threadIdx.x), 0u);  // an operand that is still to be read
  if (p.choice == 8) c[0][0] = 5;                               // an accumulator that is still to be written
  if (p.choice == 9) return;
  if (p.choice == 10) {  // the batch before: all but the latest
    ptx::fence_products();
    multiply(true);
    ptx::commit_products();
    ptx::wait_for_products<1>();
  } else if (p.choice != 11) {
    ptx::wait_for_products<0>();
  }
  for (int i = 0; i < columns / 2; ++i) {
    ptx::store_global(p.out + columns / 2 * threadIdx.x + i, __float_as_uint(c[i / 4][i % 4]));
  }
  ptx::wait_for_products<0>();
}

using ProductKernel = void (*)(ProductProbe);

template <class Element, int columns>
ProductKernel product_kernel(bool shared, bool transposed) {
  if (shared) return transposed ? product<Element, columns, true, true> : product<Element, columns, true, false>;
  return transposed ? product<Element, columns, false, true> : product<Element, columns, false, false>;
}

template <class Element>
ProductKernel product_kernel(int columns, bool shared, bool transposed) {
  switch (columns) {
    case 64:
      return product_kernel<Element, 64>(shared, transposed);
    case 80:
      return product_kernel<Element, 80>(shared, transposed);
    case 128:
      return product_kernel<Element, 128>(shared, transposed);
    case 256:
      return product_kernel<Element, 256>(shared, transposed);
    default:
      throw std::invalid_argument("no such product");
  }
}

// --- warpgroups
// -------------------------------------------------------------------------------------------------------

void elected_lane(Probe p) { ptx::store_global(p.out + threadIdx.x, static_cast<uint32_t>(ptx::elect_one())); }

// Three warpgroups, 168 registers a thread at the launch.
void registers(Probe p) {
  const unsigned warpgroup = threadIdx.x / 128;
  if (p.choice == 0) {
    warpgroup == 0 ? ptx::decrease_registers_to<24>() : ptx::increase_registers_to<240>();
  } else if (p.choice == 1) {  // 8 more than there are
    warpgroup == 0 ? ptx::decrease_registers_to<32>() : ptx::increase_registers_to<240>();
  } else if (p.choice == 2) {
    ptx::decrease_registers_to<100>();
  } else if (p.choice == 3) {
    ptx::decrease_registers_to<240>();
  } else if (threadIdx.x >= 32) {  // not all warps of a warpgroup
    ptx::decrease_registers_to<24>();
  }
  ptx::store_global(p.out + threadIdx.x, 1u);
}

// --- the module
// -------------------------------------------------------------------------------------------------------

void bind(py::module_& m, const char* name, void (*kernel)(Probe), unsigned threads) {
  m.def(
      name,
      [=](Array<uint32_t> out, int choice) {
        auto& memory = emu::DeviceMemory::instance();
        memory.clear();
        const Probe probe{memory.expose("out", out.mutable_data(), out.nbytes(), emu::Access::kReadWrite), choice};
        launch(name, kernel, {dim3{1, 1, 1}, threads, 2048}, probe, nullptr);
        emu::Machine::instance().synchronise();
      },
      py::arg("out"), py::arg("choice") = 0);
}

void bind_tensor(py::module_& m, const char* name, void (*kernel)(TensorProbe), unsigned threads) {
  m.def(
      name,
      [=](Array<uint16_t> source, std::vector<uint64_t> extent, std::vector<uint64_t> stride_bytes,
          std::vector<uint32_t> box, int swizzle, std::vector<int> first, Array<uint32_t> out, int choice) {
        auto& memory = emu::DeviceMemory::instance();
        memory.clear();
        auto* data = memory.expose("source", source.mutable_data(), source.nbytes(), emu::Access::kReadWrite);
        TensorShape shape{};
        shape.data = data;
        shape.rank = static_cast<int32_t>(extent.size());
        std::copy(extent.begin(), extent.end(), shape.extent);
        std::copy(stride_bytes.begin(), stride_bytes.end(), shape.stride_bytes);
        std::copy(box.begin(), box.end(), shape.box);
        shape.swizzle = static_cast<TensorSwizzle>(swizzle);
        TensorProbe probe{encode_tensor_map(shape), {}, 2, reinterpret_cast<uint32_t*>(data), nullptr, choice};
        for (const uint32_t elements : box) probe.bytes *= elements;
        std::copy(first.begin(), first.end(), probe.first.begin());
        probe.out = memory.expose("out", out.mutable_data(), out.nbytes(), emu::Access::kReadWrite);
        launch(name, kernel, {dim3{1, 1, 1}, threads, kDataAt + 32 * 1024}, probe, nullptr);
        emu::Machine::instance().synchronise();
      },
      py::arg("source"), py::arg("extent"), py::arg("stride_bytes"), py::arg("box"), py::arg("swizzle"),
      py::arg("first"), py::arg("out"), py::arg("choice") = 0);
}

}  // namespace
}  // namespace cudaprefill

PYBIND11_MODULE(_hopper_probes, m) {
  using namespace cudaprefill;
  emu::Machine::instance().set_compute_capability(90);
  py::register_local_exception<emu::Fault>(m, "Fault", PyExc_RuntimeError);
  m.attr("DATA_AT") = kDataAt + emu::SharedMemory::kBase;
  m.def("set_seed", [](uint64_t seed) { emu::Machine::instance().set_seed(seed); });
  m.def("set_compute_capability", [](int value) { emu::Machine::instance().set_compute_capability(value); });
  bind(m, "mbarrier_ring", mbarrier_ring, 64);
  bind(m, "mbarrier_misuse", mbarrier_misuse, 1);
  bind(m, "elected_lane", elected_lane, 32);
  bind(m, "registers", registers, 384);
  bind_tensor(m, "tensor_copy", tensor_copy, 32);
  bind_tensor(m, "tensor_copy_over_reader", tensor_copy_over_reader, 64);
  m.def(
      "product",
      [](Array<uint32_t> image, std::optional<uint64_t> a, Array<uint32_t> fragments, uint64_t b, int columns,
         bool half, bool transposed, Array<uint32_t> out, int choice) {
        auto& memory = emu::DeviceMemory::instance();
        memory.clear();
        const ProductProbe probe{memory.expose("image", image.data(), image.nbytes(), emu::Access::kRead),
                                 static_cast<uint32_t>(image.size()),
                                 memory.expose("fragments", fragments.data(), fragments.nbytes(), emu::Access::kRead),
                                 a.value_or(0),
                                 b,
                                 memory.expose("out", out.mutable_data(), out.nbytes(), emu::Access::kReadWrite),
                                 choice};
        const ProductKernel kernel = half ? product_kernel<Half>(columns, a.has_value(), transposed)
                                          : product_kernel<BFloat16>(columns, a.has_value(), transposed);
        const auto shared_bytes = kDataAt + static_cast<size_t>(image.nbytes());
        launch("product", kernel, {dim3{1, 1, 1}, 128, shared_bytes}, probe, nullptr);
        emu::Machine::instance().synchronise();
      },
      py::arg("image"), py::arg("a"), py::arg("fragments"), py::arg("b"), py::arg("columns"), py::arg("half"),
      py::arg("transposed"), py::arg("out"), py::arg("choice") = 0);
}
