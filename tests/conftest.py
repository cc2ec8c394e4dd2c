"""What holds for every test."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Iterator

import pytest

# A test says the same today and tomorrow; `make fuzz` looks where none has looked. `make gpu-check` has no hypothesis.
with contextlib.suppress(ImportError):
    from hypothesis import settings

    settings.register_profile("same", derandomize=True)
    settings.register_profile("random", derandomize=False)
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


@pytest.fixture(autouse=True)
def collector_sees_everything_again() -> Iterator[None]:
    """Commands and servers keep what they load from Python's garbage collector for as long as their process lasts."""
    yield
    gc.unfreeze()
