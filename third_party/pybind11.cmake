# Finds pybind11 through its Python package.
execute_process(
  COMMAND "${Python_EXECUTABLE}" -m pybind11 --cmakedir
  OUTPUT_VARIABLE pybind11_DIR OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE pybind11_missing)
if(pybind11_missing)
  message(FATAL_ERROR "pybind11 cannot be imported by ${Python_EXECUTABLE}: install it first")
endif()
set(PYBIND11_FINDPYTHON ON)
find_package(pybind11 CONFIG REQUIRED)
