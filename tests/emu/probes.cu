// Small kernels that keep or break one rule each, and their Python module. test_machine.py says what must happen.
#include <cuda_runtime.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <launch.cuh>
#include <ptx/async_copy.cuh>
#include <ptx/barrier.cuh>
#include <ptx/convert.cuh>
#include <ptx/matrix.cuh>
#include <ptx/memory.cuh>

#include "csrc/emu/fault.h"

namespace cudaprefill {
namespace {

namespace py = pybind11;
template <class T>
using Array = py::array_t<T, py::array::c_style>;

// The memory of one probe: `in` is read-only.
struct Probe {
  const uint32_t* in;
  uint32_t* out;
  int choice;  // which of the variants of a probe runs
};

uint32_t word(uint32_t index) { return ptx::shared_base() + 4 * index; }

// Every thread writes a word and reads its neighbour's.
__global__ void neighbours(Probe p) {
  const unsigned i = threadIdx.x;
  ptx::store_shared(word(i), i);
  if (p.choice == 1) __syncthreads();
  if (p.choice == 2) __syncwarp();
  uint32_t value;
  ptx::load_shared(word((i + 1) % blockDim.x), value);
  ptx::store_global(p.out + i, value);
}

// Every thread reads its neighbour's word and then overwrites its own.
__global__ void overwrite_after_read(Probe p) {
  const unsigned i = threadIdx.x;
  ptx::store_shared(word(i), i);
  __syncthreads();
  uint32_t value;
  ptx::load_shared(word((i + 1) % blockDim.x), value);
  if (p.choice == 1) __syncthreads();
  ptx::store_shared(word(i), 100 + value);
  ptx::store_global(p.out + i, value);
}

__global__ void barriers(Probe p) {
  const bool first_half = threadIdx.x < blockDim.x / 2;
  switch (p.choice) {
    case 0:  // one barrier each, but not the same one
      if (first_half) {
        __syncthreads();
      } else {
        __syncthreads();
      }
      break;
    case 1:  // half of the threads never come
      if (first_half) __syncthreads();
      break;
    case 2:  // a named barrier that waits for more than come
      if (first_half) ptx::named_barrier_sync(3, blockDim.x);
      break;
    case 3:  // two opinions on how many come
      ptx::named_barrier_sync(3, first_half ? 96 : 128);
      break;
    case 4:  // a producer that does not wait: the first half writes, the second reads
      if (first_half) {
        ptx::store_shared(word(threadIdx.x), threadIdx.x + 7);
        ptx::named_barrier_arrive(1, blockDim.x);
      } else {
        ptx::named_barrier_sync(1, blockDim.x);
        uint32_t value;
        ptx::load_shared(word(threadIdx.x - blockDim.x / 2), value);
        ptx::store_global(p.out + threadIdx.x, value);
      }
      break;
    case 5:  // a warp that does not agree on what it does
      if (threadIdx.x % 2) {
        __syncwarp();
      } else {
        __ballot_sync(0xffffffff, true);
      }
      break;
  }
}

__global__ void shared_access(Probe p) {
  uint32_t value = 0;
  if (p.choice == 0) ptx::load_shared(word(0), value);
  if (p.choice == 1) ptx::load_shared(word(512), value);
  if (p.choice == 2) ptx::load_shared(0, value);
  if (p.choice == 3) ptx::load_shared(word(0) + 2, value);
  if (p.choice == 4) ptx::store_shared(word(0xffffffff), value);
  ptx::store_global(p.out, value);
}

__global__ void global_access(Probe p) {
  uint4 four{};
  if (p.choice == 0) four.x = ptx::load_global(p.in + 64);
  if (p.choice == 1) four.x = ptx::load_global(p.in - 1);
  if (p.choice == 2) ptx::store_global(const_cast<uint32_t*>(p.in), 1u);
  if (p.choice == 3) four = ptx::load_global(reinterpret_cast<const uint4*>(p.in + 1));
  if (p.choice == 4) four = ptx::load_global(reinterpret_cast<const uint4*>(p.in + 64));
  if (p.choice == 5) ptx::copy_async_16(word(0), p.in + 64, true);
  if (p.choice == 6) four.x = *p.in;
  ptx::store_global(p.out, four.x);
}

// Each of the 32 threads copies 16 bytes, three groups of them; the choice is where the wait stands.
__global__ void async_copies(Probe p) {
  const unsigned lane = threadIdx.x;
  for (unsigned group = 0; group < 3; ++group) {
    const bool valid = !(p.choice == 4 && lane == 5);
    ptx::copy_async_16(word(128 * group + 4 * lane), valid ? p.in + 4 * lane : nullptr, valid);
    ptx::commit_copies();
  }
  uint32_t value;
  if (p.choice == 1) ptx::wait_for_copies<1>();
  if (p.choice >= 2) ptx::wait_for_copies<0>();
  if (p.choice != 3) __syncthreads();
  const unsigned group = p.choice == 1 ? 1 : 2;
  ptx::load_shared(word(128 * group + 4 * ((lane + 1) % 32)), value);
  ptx::store_global(p.out + lane, value);
}

// The source changes between the copy and the wait.
__global__ void late_copy(Probe p) {
  ptx::store_global(p.out, 1u);
  ptx::copy_async_16(word(0), p.out, true);
  ptx::commit_copies();
  ptx::store_global(p.out, 2u);
  ptx::wait_for_copies<0>();
  uint32_t value;
  ptx::load_shared(word(0), value);
  ptx::store_global(p.out + 1, value);
}

// in: [32, 8, 8] rows of a matrix stack, of which the first four are loaded; out: [32 lanes, 4 registers].
__global__ void matrix_load(Probe p) {
  const unsigned lane = threadIdx.x;
  for (unsigned i = 0; i < 4; ++i) ptx::store_shared(word(4 * lane + i), ptx::load_global(p.in + 4 * lane + i));
  __syncwarp();
  uint32_t fragment[4];
  if (p.choice == 0) ptx::load_matrices(word(4 * lane), fragment);
  if (p.choice == 1) ptx::load_matrices_transposed(word(4 * lane), fragment);
  for (unsigned i = 0; i < 4; ++i) ptx::store_global(p.out + 4 * lane + i, fragment[i]);
}

// in: [32 lanes, a0 a1 a2 a3 b0 b1]; out: [32 lanes, c0 c1 c2 c3] as float32 bits, c starting at 1.
template <class Element>
__global__ void matrix_product(Probe p) {
  const uint32_t* in = p.in + 6 * threadIdx.x;
  uint32_t a[4];
  for (unsigned i = 0; i < 4; ++i) a[i] = ptx::load_global(in + i);
  float c[4] = {1, 1, 1, 1};
  ptx::multiply_accumulate<Element>(c, a, ptx::load_global(in + 4), ptx::load_global(in + 5));
  for (unsigned i = 0; i < 4; ++i) ptx::store_global(p.out + 4 * threadIdx.x + i, __float_as_uint(c[i]));
}

__global__ void shuffles(Probe p) {
  const int lane = static_cast<int>(threadIdx.x);
  constexpr uint32_t all = 0xffffffff;
  uint32_t result = 0;
  if (p.choice == 0) result = __shfl_sync(all, lane, 3);
  if (p.choice == 1) result = __shfl_sync(all, lane, 1, 8);
  if (p.choice == 2) result = __shfl_xor_sync(all, lane, 5);
  if (p.choice == 3) result = __shfl_up_sync(all, lane, 2u);
  if (p.choice == 4) result = __ballot_sync(all, lane % 3 == 0);
  if (p.choice == 5) result = __any_sync(all, lane == 9) + 2 * __all_sync(all, lane == 9) + 4 * __all_sync(all, true);
  if (p.choice == 6 && lane < 8) result = __shfl_xor_sync(0xff, lane, 1);
  if (p.choice == 7 && lane < 8) result = __shfl_sync(0xff, lane, 20);
  ptx::store_global(p.out + lane, result);
}

// The first word of shared memory counts; out says which warp came how many-th.
__global__ void order_of_warps(Probe p) {
  if (threadIdx.x == 0) ptx::store_shared(word(0), 0u);
  __syncthreads();
  if (threadIdx.x % 32 == 0) ptx::store_global(p.out + threadIdx.x / 32, ptx::atomic_add_shared(word(0), 1));
}

template <class Element>
__global__ void convert(Probe p) {
  const uint32_t* in = p.in + 2 * threadIdx.x;
  const uint32_t packed =
      ptx::pack<Element>(__uint_as_float(ptx::load_global(in)), __uint_as_float(ptx::load_global(in + 1)));
  float low, high;
  ptx::unpack<Element>(packed, low, high);
  ptx::store_global(p.out + 2 * threadIdx.x, __float_as_uint(low));
  ptx::store_global(p.out + 2 * threadIdx.x + 1, __float_as_uint(high));
}

// Binds a kernel as name(in, out, choice=0, threads=64).
void bind(py::module_& m, const char* name, void (*kernel)(Probe), unsigned default_threads = 64) {
  m.def(
      name,
      [name, kernel](Array<uint32_t> in, Array<uint32_t> out, int choice, unsigned threads) {
        constexpr size_t kSharedBytes = 2048;
        auto& memory = emu::DeviceMemory::instance();
        memory.clear();
        const Probe probe{memory.expose("in", in.data(), in.nbytes(), emu::Access::kRead),
                          memory.expose("out", out.mutable_data(), out.nbytes(), emu::Access::kReadWrite), choice};
        launch(name, kernel, {dim3{1, 1, 1}, threads, kSharedBytes}, probe, nullptr);
        emu::Machine::instance().synchronise();
      },
      py::arg("input"), py::arg("out"), py::arg("choice") = 0, py::arg("threads") = default_threads);
}

}  // namespace
}  // namespace cudaprefill

PYBIND11_MODULE(_probes, m) {
  using namespace cudaprefill;
  py::register_local_exception<emu::Fault>(m, "Fault", PyExc_RuntimeError);
  m.def("set_seed", [](uint64_t seed) { emu::Machine::instance().set_seed(seed); });
  m.def("launch", [](unsigned x, unsigned y, unsigned threads, size_t shared_bytes) {
    launch("nothing", +[](int) {}, {dim3{x, y, 1}, threads, shared_bytes}, 0, nullptr);
    emu::Machine::instance().synchronise();
  });
  bind(m, "neighbours", neighbours);
  bind(m, "overwrite_after_read", overwrite_after_read);
  bind(m, "barriers", barriers);
  bind(m, "shared_access", shared_access, 1);
  bind(m, "global_access", global_access, 1);
  bind(m, "async_copies", async_copies, 32);
  bind(m, "late_copy", late_copy, 1);
  bind(m, "matrix_load", matrix_load, 32);
  bind(m, "matrix_product_bfloat16", matrix_product<BFloat16>, 32);
  bind(m, "matrix_product_float16", matrix_product<Half>, 32);
  bind(m, "shuffles", shuffles, 32);
  bind(m, "order_of_warps", order_of_warps, 256);
  bind(m, "convert_bfloat16", convert<BFloat16>, 32);
  bind(m, "convert_float16", convert<Half>, 32);
}
