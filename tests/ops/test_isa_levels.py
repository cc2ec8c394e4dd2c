"""The choice of the instruction set level, and the tests of the element-wise ops and the matmul at each of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from cudaprefill import ops
from tests.ops.isa_levels import ISA_LEVELS, lower_isa_levels, passes_at_isa_level, run_at_isa_level

PRINT_LEVEL = ("-c", "from cudaprefill import ops; print(ops.cpu_isa())")
TEST_FILES = [
    str(Path(__file__).with_name(f"test_{name}.py"))
    for name in (
        "activate_and_mul",
        "add_lora",
        "copy_blocks",
        "linear",
        "linear_blocks",
        "rms_norm",
        "rope_write_kv",
        "wrong_arguments",
        "write_kv",
    )
]


def test_the_level_is_one_of_the_known() -> None:
    assert ops.cpu_isa() in ISA_LEVELS


@pytest.mark.parametrize("level", lower_isa_levels())
def test_the_environment_chooses_a_lower_level(level: str) -> None:
    assert run_at_isa_level(level, *PRINT_LEVEL).stdout.strip() == level


def test_an_unknown_level_is_refused_with_both_names() -> None:
    run = run_at_isa_level("sse9", *PRINT_LEVEL)
    assert run.returncode != 0
    assert '"sse9"' in run.stderr
    assert f'the highest level of this machine is "{ops.cpu_isa()}"' in run.stderr or not lower_isa_levels()


@pytest.mark.parametrize("level", lower_isa_levels())
def test_lower_levels_pass_the_tests_of_every_op(level: str) -> None:
    passes_at_isa_level(level, *TEST_FILES)
