"""Fixtures of the tests of the ops."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def same_numbers_in_every_run() -> None:
    torch.manual_seed(0)
