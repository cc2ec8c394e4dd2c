# Finds the headers of CUTLASS in the Python package nvidia-cutlass (4.2.0.0 is meant; its own needs are not: install it
# with --no-deps) and offers them as `cudaprefill_cutlass`, for tests that ask CuTe how a layout is. They need the headers
# of the CUDA toolkit, so third_party/cuda.cmake comes first. Where either is missing there is no such target.
if(NOT CUDAPREFILL_NVCC)
  message(STATUS "There is no CUDA toolkit: the kernels' layouts are not compared with CuTe's")
  return()
endif()
execute_process(
  COMMAND "${Python_EXECUTABLE}" -c
    "from importlib.util import find_spec as f; print(f('cutlass_library').submodule_search_locations[0], end='')"
  OUTPUT_VARIABLE cutlass_package ERROR_QUIET RESULT_VARIABLE cutlass_missing)
if(cutlass_missing)
  message(STATUS "nvidia-cutlass is not installed: the kernels' layouts are not compared with CuTe's")
  return()
endif()
add_library(cudaprefill_cutlass INTERFACE)
target_include_directories(cudaprefill_cutlass SYSTEM INTERFACE
  "${cutlass_package}/source/include" "${CUDAPREFILL_CUDA_ROOT}/include" "${CUDAPREFILL_CUDA_ROOT}/include/cccl")
