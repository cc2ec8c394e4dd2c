"""Kernels of a stream overlap on the emulated machine as the rules of programmatic launches allow: stream_probes.cu."""

from __future__ import annotations

import numpy as np
import pytest

probes = pytest.importorskip(
    "tests.emu._stream_probes", reason="the emulation is not built (CUDAPREFILL_BUILD_TESTS=OFF)"
)

WORDS = 16  # of a thread block; words 0, 4, 8 and 12 begin at multiples of 16 bytes


def run(*chain, blocks=1, **options):
    """Runs kernels (steps, word read, word written) and returns the words of each block; word i is 100 i before."""
    words = np.tile(100 * np.arange(WORDS, dtype=np.uint32), (blocks, 1))
    probes.run(words, list(chain), **options)
    return words


FIRST = ("wtrs", 0, 4)  # leaves 1 in word 4
TRIGGERS = ("{}", "t{}", "{}t")


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("blocks", [1, 3, 4, 5, 11])
@pytest.mark.parametrize("trigger", [*TRIGGERS, "wt{}"])
def test_kernels_that_wait_see_what_came_before(trigger, blocks, seed):
    steps = trigger.format("wrs")
    words = run((steps, 0, 4), (steps, 4, 8), (steps, 8, 12), (steps, 12, 0), blocks=blocks, seed=seed)
    assert words[:, 0].tolist() == [4] * blocks


@pytest.mark.parametrize("trigger", [*TRIGGERS, "r{}"])
def test_what_a_kernel_writes_is_not_there_before_the_wait(trigger):
    """Wherever the kernel ahead lets the next one begin, even after its stores."""
    assert run((trigger.format("rs"), 0, 4), ("rws", 4, 8))[0, 8] == 401
    assert run((trigger.format("rs"), 0, 4), ("rs", 4, 8))[0, 8] == 401


def test_a_copy_that_begins_before_the_wait_brings_what_was_there_before():
    assert run(FIRST, ("wal", 4, 0), ("wals", 4, 8))[0, 8] == 2
    assert run(FIRST, ("awls", 4, 8))[0, 8] == 401


def test_a_store_before_the_wait_is_lost_where_the_kernel_ahead_stores():
    assert run(FIRST, ("wrs", 8, 4))[0, 4] == 801
    assert run(FIRST, ("rsw", 8, 4))[0, 4] == 1


def test_a_store_before_the_wait_is_read_by_the_kernel_ahead():
    assert run(FIRST, ("wrs", 8, 0))[0, 4] == 1
    assert run(FIRST, ("rsw", 8, 0))[0, 4] == 802


def test_a_kernel_begins_no_earlier_than_all_blocks_ahead_have_let_it():
    """Those that let the next kernel begin after their read are safe from its stores, and so are blocks that ended."""
    assert run(("rts", 0, 4), ("rsw", 8, 0))[0, 4] == 1
    for seed in range(8):
        values = run(FIRST, ("rsw", 8, 0), blocks=11, seed=seed)[:, 4].tolist()
        assert values.count(1) + values.count(802) == 11
        assert values.count(802) <= 4  # as many as there are multiprocessors are not at their end yet
    assert 802 in run(FIRST, ("rsw", 8, 0), blocks=5)[:, 4]


def test_the_wait_is_for_the_kernel_ahead_alone():
    """One that ends without a wait hides the kernels before it from those after it."""
    assert run(FIRST, ("wt", 0, 0), ("wrs", 4, 8))[0, 8] == 2
    assert run(FIRST, ("t", 0, 0), ("wrs", 4, 8))[0, 8] == 401


def test_a_kernel_may_let_the_next_one_begin_before_its_own_wait():
    assert run(FIRST, ("tw", 0, 0), ("wrs", 4, 8))[0, 8] == 2


def test_one_thread_may_wait_for_the_others():
    assert run(FIRST, ("one", 4, 8))[0, 8] == 2


@pytest.mark.parametrize("steps", ["rws", "rs", "rsw"])
def test_below_capability_9_kernels_follow_one_another(steps):
    assert run(("trs", 0, 4), (steps, 4, 8), capability=80)[0, 8] == 2
