"""What holds for every test."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def collector_sees_everything_again() -> Iterator[None]:
    """Commands and servers keep what they load from Python's garbage collector for as long as their process lasts."""
    yield
    gc.unfreeze()
