"""The threads that the kernels share: any number of them, callers side by side, errors, forks, many small regions."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from cudaprefill import ops
from tests.ops.block_matrices import groups_of, random_blocks


@pytest.fixture(autouse=True)
def same_number_afterwards() -> Iterator[None]:
    before = ops.num_threads()
    yield
    ops.set_num_threads(before)


def test_by_default_there_are_as_many_as_the_process_may_run_on() -> None:
    program = "from cudaprefill import ops; print(ops.num_threads())"
    for processors in ({0}, os.sched_getaffinity(0)):
        run = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            preexec_fn=lambda chosen=processors: os.sched_setaffinity(0, chosen),
        )
        assert int(run.stdout) == len(processors)


@pytest.mark.parametrize("count", [0, -1, 1025])
def test_a_number_that_cannot_be_is_refused_with_the_bounds(count: int) -> None:
    with pytest.raises(ValueError, match=f"num_threads must be between 1 and 1024, got {count}"):
        ops.set_num_threads(count)


def test_callers_side_by_side_get_what_each_gets_alone() -> None:
    ops.set_num_threads(4)
    weight = torch.randn(700, 96)
    inputs = [torch.randn(rows, 96) for rows in (1, 3, 40, 200)] * 8
    alone = [ops.linear(x, weight) for x in inputs]
    with ThreadPoolExecutor(8) as threads:
        for _ in range(10):
            for out, expected in zip(threads.map(lambda x: ops.linear(x, weight), inputs), alone, strict=True):
                assert torch.equal(out, expected)


@pytest.mark.parametrize("count", [2, 3, 16])
def test_thousands_of_small_regions_all_end(count: int) -> None:
    """More threads than cores: workers are late, asleep or held up in the middle of an item."""
    ops.set_num_threads(count)
    x, groups = torch.randn(1, 64), groups_of(random_blocks(3, 2000, 64), 3)
    expected = ops.linear_blocks(x, groups, 3, 2000)
    stop = threading.Event()
    busy = [threading.Thread(target=lambda: [sum(range(1000)) for _ in iter(stop.is_set, True)]) for _ in range(2)]
    for thread in busy:
        thread.start()
    try:
        for _ in range(3000):
            assert torch.equal(ops.linear_blocks(x, groups, 3, 2000), expected)
    finally:
        stop.set()
        for thread in busy:
            thread.join()


def test_an_error_of_one_item_is_raised_and_the_next_call_is_fine() -> None:
    ops.set_num_threads(4)
    groups = groups_of(random_blocks(3, 50, 640), 3)
    good, bad = torch.zeros(400, dtype=torch.int64), torch.full((400,), 50)
    expected = ops.dequantise_rows(groups, 3, 50, 640, good)
    for _ in range(50):
        with pytest.raises(IndexError, match="is 50, but the matrix has 50 rows"):
            ops.dequantise_rows(groups, 3, 50, 640, bad)
        assert torch.equal(ops.dequantise_rows(groups, 3, 50, 640, good), expected)


def test_a_forked_child_computes_alone() -> None:
    """Its parent's workers do not come along in a fork."""
    program = """
import os, torch
from cudaprefill import ops
torch.manual_seed(0)
ops.set_num_threads(4)
x, weight = torch.randn(30, 96), torch.randn(700, 96)
expected = ops.linear(x, weight)
child = os.fork()
if child == 0:
    os._exit(0 if torch.equal(ops.linear(x, weight), expected) else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment, timeout=120
    )
    assert run.stdout.strip() == "0", run.stderr
