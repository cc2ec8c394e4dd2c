from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings

settings.register_profile("no clock", deadline=None)
settings.load_profile("no clock")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """The tensors here are small: more threads only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
