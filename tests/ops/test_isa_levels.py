"""The choice of the instruction set level, and the tests of the element-wise ops and the matmul at each of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from cudaprefill import ops
from tests.ops.isa_levels import (
    ISA_LEVELS,
    lower_float_levels,
    lower_isa_levels,
    passes_at_isa_level,
    run_at_isa_level,
)

PRINT_LEVEL = ("-c", "from cudaprefill import ops; print(ops.cpu_isa())")


def files_of_tests(*names: str) -> list[str]:
    return [str(Path(__file__).with_name(f"test_{name}.py")) for name in names]


FLOAT_FILES = files_of_tests(
    "activate_and_mul",
    "add_lora",
    "copy_blocks",
    "expert_mlp",
    "linear",
    "linear_blocks",
    "rms_norm",
    "rope_write_kv",
    "wrong_arguments",
    "write_kv",
)
INTEGER_FILES = files_of_tests("linear_integers", "gated_linear")


def test_the_level_is_one_of_the_known() -> None:
    assert ops.cpu_isa() in ISA_LEVELS


@pytest.mark.parametrize("level", lower_isa_levels())
def test_the_environment_chooses_a_lower_level(level: str) -> None:
    assert run_at_isa_level(level, *PRINT_LEVEL).stdout.strip() == level


def test_an_unknown_level_is_refused_with_the_names_of_those_there_are() -> None:
    run = run_at_isa_level("sse9", *PRINT_LEVEL)
    assert run.returncode != 0
    assert '"sse9"' in run.stderr
    if lower_isa_levels():
        assert f"but this machine has {', '.join([*lower_isa_levels(), ops.cpu_isa()])}" in run.stderr


@pytest.mark.parametrize("level", lower_float_levels())
def test_lower_levels_pass_the_tests_of_every_op(level: str) -> None:
    passes_at_isa_level(level, *FLOAT_FILES)


@pytest.mark.parametrize("level", lower_isa_levels())
def test_lower_levels_pass_the_tests_of_integer_products(level: str) -> None:
    passes_at_isa_level(level, *INTEGER_FILES)
