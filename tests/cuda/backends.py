"""Runs the functions of `cudaprefill.ops` on one backend or another, so that one test serves them all.

The tensors of a test stay on the CPU. The emulated device works on them in place; for a real one they are copied there
and what the op mutates is copied back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from cudaprefill import ops

OP_NAMES = (
    "write_kv",
    "prefill_attention",
    "decode_attention",
    "mixed_attention",
    "rope_write_kv",
    "rms_norm",
    "add_rms_norm",
    "silu_and_mul",
    "gelu_tanh_and_mul",
    "expert_mlp",
    "copy_blocks",
    "add_lora",
)
NOT_BUILT = "the emulation is not built (CUDAPREFILL_BUILD_TESTS=OFF)"
_libraries: dict[str, torch.library.Library] = {}


def define_library(name: str) -> None:
    """Defines the ops of ``cudaprefill`` in a torch library `name`, for a module of emulated kernels to implement."""
    library = torch.library.Library(name, "DEF")
    for op in OP_NAMES:
        schema = str(getattr(torch.ops.cudaprefill, op).default._schema)
        library.define(schema.removeprefix("cudaprefill::"))
    _libraries[name] = library


def emulation():
    """The module of the emulated device, loaded once; a test that asks for it is skipped where it is not built."""
    module = pytest.importorskip("tests.emu._emulation", reason=NOT_BUILT)
    if "cudaprefill_emulated" not in _libraries:
        define_library("cudaprefill_emulated")
        module.register_kernels("cudaprefill_emulated")
    return module


@contextmanager
def as_it_usually_is(device: Any) -> Iterator[Any]:
    """An emulated device as tests expect it, and the same afterwards, whatever they set and however they end."""
    _set_back(device)
    try:
        yield device
    finally:
        _set_back(device)


def _set_back(device: Any) -> None:
    device.set_compute_capability(80)
    device.set_num_multiprocessors(4)
    device.set_l2_bytes(40 * 2**20)
    device.set_prefill_kernel("best")
    device.set_decode_kernel("best")
    device.set_seed(0)
    device.reset_counters()


def on_cuda(op: torch._ops.OpOverload) -> Callable[..., object]:
    """The op with its tensors carried to the GPU and what it mutates carried back."""
    arguments = op._schema.arguments

    def call(*args: object, **kwargs: object) -> object:
        values = {**dict(zip((a.name for a in arguments), args, strict=False)), **kwargs}
        there = {name: value.cuda() if isinstance(value, torch.Tensor) else value for name, value in values.items()}
        result = op(**there)
        for argument in arguments:
            if argument.alias_info is not None and argument.alias_info.is_write and argument.name in values:
                values[argument.name].copy_(there[argument.name])
        return result.cpu() if isinstance(result, torch.Tensor) else result

    return call


def functions_of(library: str) -> dict[str, Callable[..., object]]:
    """The ops of a torch library by name."""
    return {op: getattr(getattr(torch.ops, library), op).default for op in OP_NAMES}


@contextmanager
def ops_replaced_by(functions: dict[str, Callable[..., object]]) -> Iterator[None]:
    """While it lasts, these functions stand in `cudaprefill.ops`."""
    with pytest.MonkeyPatch.context() as patch:
        for op, function in functions.items():
            patch.setattr(ops, op, function)
        yield


@contextmanager
def backend_of_ops(name: str) -> Iterator[None]:
    """While it lasts, `cudaprefill.ops` is that of the backend: "emulated" or "cuda"."""
    if name == "emulated":
        emulation()
        functions = functions_of("cudaprefill_emulated")
    else:
        if not torch.cuda.is_available():
            pytest.skip("there is no CUDA device")
        functions = {name: on_cuda(op) for name, op in functions_of("cudaprefill").items()}
    with ops_replaced_by(functions):
        yield


# What the kernels refuse by name: no model that runs on a GPU has it.
REFUSALS = (
    "the caches must have the dtype of the activations",
    "block_size must be a power of two",
    "must be a multiple of",  # a size
    "must begin at a multiple of",
    "must have strides that are multiples of",
)


def skipping_refusals(function: Callable[..., object]) -> Callable[..., object]:
    """The op, but the test is skipped, with the op's own words, where the kernels refuse its arguments."""

    def call(*args: object, **kwargs: object) -> object:
        try:
            return function(*args, **kwargs)
        except (RuntimeError, ValueError) as error:
            if any(refusal in str(error) for refusal in REFUSALS):
                pytest.skip(str(error).splitlines()[0])
            raise

    return call


GPU_BACKENDS = ("emulated", pytest.param("cuda", marks=pytest.mark.gpu))
