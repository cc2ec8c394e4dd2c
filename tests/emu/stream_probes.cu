// Chains of kernels that keep or break the rules of programmatic launches, and their Python module. test_stream.py says
// what must happen.
#include <cuda_runtime.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <launch.cuh>
#include <optional>
#include <ptx/async_copy.cuh>
#include <ptx/memory.cuh>
#include <ptx/programmatic_launch.cuh>
#include <string>
#include <vector>

#include "csrc/emu/fault.h"

namespace cudaprefill {
namespace {

namespace py = pybind11;

// One kernel: what each of its thread blocks, of one warp, does one after another, in a row of words of its own.
//
//     w  griddepcontrol.wait                   t  griddepcontrol.launch_dependents
//     r  reads word `from`                     s  stores what was read, plus one, at word `to`
//     a  begins a cp.async of word `from`      l  waits for it and reads what came
struct Link {
  uint32_t* words;
  const char* steps;
  unsigned from, to, row_words;
};

__global__ void link(Link link) {
  uint32_t* row = link.words + blockIdx.x * link.row_words;
  const unsigned lane = threadIdx.x;
  uint32_t value = 0;
  for (const char* step = link.steps; *step; ++step) {
    if (*step == 'w') ptx::wait_for_kernel_before();
    if (*step == 't') ptx::let_next_kernel_begin();
    if (lane > 0) continue;
    if (*step == 'r') value = ptx::load_global(row + link.from);
    if (*step == 's') ptx::store_global(row + link.to, value + 1);
    if (*step == 'a') {
      ptx::copy_async_16(ptx::shared_base(), row + link.from, true);
      ptx::commit_copies();
    }
    if (*step == 'l') {
      ptx::wait_for_copies<0>();
      ptx::load_shared(ptx::shared_base(), value);
    }
  }
}

// One thread waits, and the others learn of it at a barrier.
__global__ void one_waits_for_all(Link link) {
  if (threadIdx.x == 0) ptx::wait_for_kernel_before();
  __syncthreads();
  if (threadIdx.x == 32) ptx::store_global(link.words + link.to, ptx::load_global(link.words + link.from) + 1);
}

using Step = std::tuple<std::string, unsigned, unsigned>;  // steps, from, to

void run(py::array_t<uint32_t, py::array::c_style> words, const std::vector<Step>& chain, int capability,
         int multiprocessors, uint64_t seed) {
  auto& machine = emu::Machine::instance();
  machine.set_compute_capability(capability);
  machine.set_num_multiprocessors(multiprocessors);
  machine.set_seed(seed);
  auto& memory = emu::DeviceMemory::instance();
  memory.clear();
  auto* device = memory.expose("words", words.mutable_data(), words.nbytes(), emu::Access::kReadWrite);
  for (const auto& [steps, from, to] : chain) {
    const Link params{device, steps.c_str(), from, to, static_cast<unsigned>(words.shape(1))};
    const bool by_one = steps == "one";
    const LaunchShape shape{dim3{static_cast<unsigned>(words.shape(0)), 1, 1}, by_one ? 64u : 32u, 16};
    launch(steps.c_str(), by_one ? one_waits_for_all : link, shape, params, nullptr);
  }
  machine.synchronise();
}

}  // namespace
}  // namespace cudaprefill

PYBIND11_MODULE(_stream_probes, m) {
  namespace py = pybind11;
  py::register_local_exception<cudaprefill::emu::Fault>(m, "Fault", PyExc_RuntimeError);
  m.def("run", cudaprefill::run, py::arg("words"), py::arg("chain"), py::arg("capability") = 90,
        py::arg("multiprocessors") = 4, py::arg("seed") = 0);
}
