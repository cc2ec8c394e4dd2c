# Finds nvcc and offers cudaprefill_add_cuda_objects(). Where there is none, CUDAPREFILL_NVCC is empty and the CUDA target
# is left out: everything else is built and tested without it.
#
# CMake's own CUDA language is not used: it wants a working GPU toolchain at configuration, and the report of the
# assembler, which `make cuda` checks, would be lost in the build log.
find_program(CUDAPREFILL_NVCC nvcc PATHS /usr/local/cuda/bin)
if(NOT CUDAPREFILL_NVCC)
  set(CUDAPREFILL_NVCC "")
  message(STATUS "nvcc is not installed: the CUDA kernels are only emulated")
  return()
endif()
execute_process(COMMAND "${CUDAPREFILL_NVCC}" --version OUTPUT_VARIABLE nvcc_version)
string(REGEX MATCH "release ([0-9.]+)" nvcc_version "${nvcc_version}")
set(CUDAPREFILL_NVCC_VERSION "${CMAKE_MATCH_1}")
# The folder of the toolkit, as nvcc itself sees it (it may be a script on the PATH).
execute_process(COMMAND "${CUDAPREFILL_NVCC}" -dryrun -c x.cu ERROR_VARIABLE nvcc_dryrun)
string(REGEX MATCH "#\\$ TOP=([^\n]+)" nvcc_top "${nvcc_dryrun}")
file(REAL_PATH "${CMAKE_MATCH_1}" CUDAPREFILL_CUDA_ROOT)

find_library(CUDAPREFILL_CUDART cudart_static
  PATHS "${CUDAPREFILL_CUDA_ROOT}/lib64" "${CUDAPREFILL_CUDA_ROOT}/targets/x86_64-linux/lib"
        "${CUDAPREFILL_CUDA_ROOT}/targets/sbsa-linux/lib" "${CUDAPREFILL_CUDA_ROOT}/lib" NO_DEFAULT_PATH)
if(CUDAPREFILL_NVCC_VERSION VERSION_LESS 12.0 OR NOT CUDAPREFILL_CUDART)
  message(STATUS "nvcc ${CUDAPREFILL_NVCC_VERSION} in ${CUDAPREFILL_CUDA_ROOT} is older than 12.0 (C++20) or has no static "
    "runtime: the CUDA kernels are only emulated")
  set(CUDAPREFILL_NVCC "")
  return()
endif()
message(STATUS "Found nvcc ${CUDAPREFILL_NVCC_VERSION} in ${CUDAPREFILL_CUDA_ROOT}: the CUDA kernels are built")

# The disassembler, for `make cuda`: of the toolkit, or of the package nvidia-cuda-cuobjdump, which has its nvdisasm from
# nvidia-cuda-nvdisasm beside it.
execute_process(
  COMMAND "${Python_EXECUTABLE}" -c
    "import pathlib, sysconfig; print(*pathlib.Path(sysconfig.get_path('purelib')).glob('nvidia/*/bin'), sep=';', end='')"
  OUTPUT_VARIABLE nvidia_package_tools)
find_program(CUDAPREFILL_CUOBJDUMP cuobjdump PATHS "${CUDAPREFILL_CUDA_ROOT}/bin" ${nvidia_package_tools})

# Machine code for Ampere (which Ada runs as well) and Hopper, and PTX of the former for what comes after.
set(CUDAPREFILL_CUDA_CODE
  -gencode=arch=compute_80,code=[sm_80,compute_80]
  -gencode=arch=compute_90a,code=sm_90a
  CACHE STRING "The -gencode options of nvcc")

# For the kernels whose instructions Hopper alone has.
set(CUDAPREFILL_HOPPER_CODE -gencode=arch=compute_90a,code=sm_90a)

# Compiles each source, for `code`, to an object and a log of the assembler beside it; the lists are returned in `objects`
# and `logs`.
function(cudaprefill_add_cuda_objects objects logs code)
  foreach(source ${ARGN})
    cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY "${CMAKE_SOURCE_DIR}")
    cmake_path(GET source STEM name)
    set(object "${CMAKE_BINARY_DIR}/cuda/${name}.o")
    set(log "${CMAKE_BINARY_DIR}/cuda/${name}.log")
    add_custom_command(
      OUTPUT "${object}" "${log}"
      COMMAND "${CMAKE_COMMAND}" -E make_directory "${CMAKE_BINARY_DIR}/cuda"
      COMMAND sh -c [=[log="$1"; shift; "$@" > "$log" 2>&1 || { cat "$log"; rm -f "$log"; exit 1; }]=] nvcc "${log}"
        "${CUDAPREFILL_NVCC}" -std=c++20 -O3 ${code} "-I${CMAKE_SOURCE_DIR}"
        "-I${CMAKE_SOURCE_DIR}/csrc/cuda" -Xcompiler=-fPIC,-fvisibility=hidden,-Wall,-Wextra -Xptxas=-v
        -MD -MF "${object}.d" -c "${source}" -o "${object}"
      DEPENDS "${source}" DEPFILE "${object}.d" VERBATIM
      COMMENT "Compiling ${name}.cu with nvcc")
    list(APPEND all_objects "${object}")
    list(APPEND all_logs "${log}")
  endforeach()
  set(${objects} ${all_objects} PARENT_SCOPE)
  set(${logs} ${all_logs} PARENT_SCOPE)
endfunction()
