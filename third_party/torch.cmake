# Finds torch through torch.utils.cpp_extension, as a Python extension would, and offers it as `cudaprefill_torch`.
# Only the headers of the stable ABI are meant to be used, so one binary serves torch 2.11 and later.
execute_process(
  COMMAND "${Python_EXECUTABLE}" -c
    "from torch.utils import cpp_extension as c; print(';'.join(c.include_paths())); print(';'.join(c.library_paths()))"
  OUTPUT_VARIABLE torch_paths OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE torch_missing)
if(torch_missing)
  message(FATAL_ERROR "torch cannot be imported by ${Python_EXECUTABLE}: install it first, and build without isolation")
endif()
string(REPLACE "\n" "|" torch_paths "${torch_paths}")
string(REGEX REPLACE "\\|.*" "" torch_include_dirs "${torch_paths}")
string(REGEX REPLACE ".*\\|" "" torch_library_dirs "${torch_paths}")

add_library(cudaprefill_torch INTERFACE)
target_include_directories(cudaprefill_torch SYSTEM INTERFACE ${torch_include_dirs})
target_link_directories(cudaprefill_torch INTERFACE ${torch_library_dirs})
target_link_libraries(cudaprefill_torch INTERFACE torch torch_cpu)
target_compile_definitions(cudaprefill_torch INTERFACE TORCH_TARGET_VERSION=0x020b000000000000)
