# Finds torch where Python imports it from, and offers it as `cudaprefill_torch`. (torch.utils.cpp_extension knows the same
# folders, but needs setuptools, which is not everywhere.)
# Only the headers of the stable ABI are meant to be used, so one binary serves torch 2.11 and later.
execute_process(
  COMMAND "${Python_EXECUTABLE}" -c
    "import pathlib, torch; print(pathlib.Path(torch.__file__).parent, end='')"
  OUTPUT_VARIABLE torch_root RESULT_VARIABLE torch_missing)
if(torch_missing)
  message(FATAL_ERROR "torch cannot be imported by ${Python_EXECUTABLE}: install it first, and build without isolation")
endif()
add_library(cudaprefill_torch INTERFACE)
target_include_directories(cudaprefill_torch SYSTEM INTERFACE 
  "${torch_root}/include" "${torch_root}/include/torch/csrc/api/include")
target_link_directories(cudaprefill_torch INTERFACE "${torch_root}/lib")
target_link_libraries(cudaprefill_torch INTERFACE torch torch_cpu)
target_compile_definitions(cudaprefill_torch INTERFACE TORCH_TARGET_VERSION=0x020b000000000000)
