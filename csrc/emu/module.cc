// The Python module of the emulation: importing it registers the emulated kernels as the CPU backend of a torch library
// of its own, whose ops the tests define with the schemas of the real one. Its functions set the device up.
#include <pybind11/pybind11.h>

#include "csrc/emu/fault.h"
#include "csrc/emu/machine.h"

PYBIND11_MODULE(CUDAPREFILL_EMU_MODULE, m) {
  using cudaprefill::emu::Counters;
  using cudaprefill::emu::Machine;
  pybind11::register_local_exception<cudaprefill::emu::Fault>(m, "Fault", PyExc_RuntimeError);
  m.def("set_seed", [](uint64_t seed) { Machine::instance().set_seed(seed); });
  m.def("set_num_multiprocessors", [](int n) { Machine::instance().set_num_multiprocessors(n); });
  m.def("reset_counters", [] { Machine::instance().counters() = Counters{}; });
  m.def("counters", [] {
    const Counters& counters = Machine::instance().counters();
    pybind11::dict result;
    result["launches"] = counters.launches;
    result["blocks"] = counters.blocks;
    result["matrix_loads"] = counters.matrix_loads;
    result["matrix_load_conflicts"] = counters.matrix_load_conflicts;
    return result;
  });
}
