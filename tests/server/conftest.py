from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.server.running import RunningServer


@pytest.fixture(scope="module")
def shared_server() -> Iterator[RunningServer]:
    with RunningServer() as server:
        yield server


@pytest.fixture
def server(shared_server: RunningServer) -> Iterator[RunningServer]:
    """One server for all tests of a module, none of which may leave anything for the next."""
    yield shared_server
    shared_server.check_idle()
    shared_server.await_(shared_server.state.engine.reset_prefix_cache())
