"""What Python's garbage collector is spared."""

from __future__ import annotations

import gc
import weakref

import pytest

from cudaprefill.garbage import uncollected


class Circle:
    """Garbage as soon as nobody else has it."""

    def __init__(self) -> None:
        self.circle = self


def test_garbage_is_looked_for_again_but_not_among_what_was_there() -> None:
    with uncollected():
        assert not gc.isenabled()
        old = Circle()
    assert gc.isenabled()
    assert gc.get_freeze_count() > 10_000
    new = Circle()
    seen_old, seen_new = weakref.ref(old), weakref.ref(new)
    del old, new
    gc.collect()
    assert seen_new() is None
    assert seen_old() is not None
    gc.unfreeze()
    gc.collect()
    assert seen_old() is None


def test_inside_another_it_leaves_the_collector_off() -> None:
    with uncollected():
        with uncollected():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_an_error_inside_does_not_leave_the_collector_off() -> None:
    with pytest.raises(ImportError), uncollected():
        raise ImportError
    assert gc.isenabled()
