from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.server.running import RunningServer


@pytest.fixture
def server() -> Iterator[RunningServer]:
    with RunningServer() as server:
        yield server
