// The Python module of the emulation. The tests load it once with the kernels as they are, and once for every mutant of
// them (tests/emu/mutants), each under a torch library of its own; its other functions set the device up.
#include <pybind11/pybind11.h>

#include "csrc/emu/backend.h"
#include "csrc/emu/fault.h"
#include "csrc/emu/machine.h"
#include "csrc/emu/register_emulated.h"

PYBIND11_MODULE(_emulation, m) {
  using cudaprefill::emu::Counters;
  using cudaprefill::emu::Machine;
  pybind11::register_local_exception<cudaprefill::emu::Fault>(m, "Fault", PyExc_RuntimeError);
  m.def("register_kernels", &cudaprefill::emu::register_emulated);
  m.def("set_seed", [](uint64_t seed) { Machine::instance().set_seed(seed); });
  m.def("set_num_multiprocessors", [](int n) { Machine::instance().set_num_multiprocessors(n); });
  m.def("set_compute_capability", [](int capability) { Machine::instance().set_compute_capability(capability); });
  m.def("set_prefill_kernel", [](const std::string& name) {
    cudaprefill::emu::EmulatedBackend::wanted_prefill_kernel = cudaprefill::cuda::prefill_kernel_named(name);
  });
  m.def("set_l2_bytes", [](int64_t bytes) { cudaprefill::emu::EmulatedBackend::l2_bytes = bytes; });
  m.def("set_decode_kernel", [](const std::string& name) {
    cudaprefill::emu::EmulatedBackend::wanted_decode_kernel = cudaprefill::cuda::decode_kernel_named(name);
  });
  m.def("reset_counters", [] { Machine::instance().counters() = Counters{}; });
  m.def("counters", [] {
    const Counters& counters = Machine::instance().counters();
    pybind11::dict result;
    result["launches"] = counters.launches;
    result["blocks"] = counters.blocks;
    result["matrix_loads"] = counters.matrix_loads;
    result["matrix_load_conflicts"] = counters.matrix_load_conflicts;
    result["products"] = counters.products;
    result["tensor_copies"] = counters.tensor_copies;
    return result;
  });
}
