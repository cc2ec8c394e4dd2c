"""A server on the fake model, and a connection to its telemetry."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.server.running import RunningServer
from tests.server.telemetry.connection import Telemetry


@pytest.fixture
def server() -> Iterator[RunningServer]:
    """One that has done nothing yet."""
    with RunningServer() as server:
        yield server


@pytest.fixture
def telemetry(server: RunningServer) -> Iterator[Telemetry]:
    with Telemetry(server) as telemetry:
        yield telemetry
