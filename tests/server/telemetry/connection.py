"""One connection to `/v1/telemetry`, and requests for it to tell of."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

from websockets.sync.client import ClientConnection, connect

from cudaprefill.client.engine_view import EngineView
from cudaprefill.protocol.codec import decode
from cudaprefill.protocol.telemetry import SERVER_MESSAGES, TelemetrySnapshot, TelemetryUpdate
from tests.server.running import PATIENCE, RunningServer

FAST = 60.0  # updates a second


class Telemetry:
    """One connection, and a view of what came over it."""

    connection: ClientConnection

    def __init__(self, server: RunningServer, **options: Any) -> None:
        self._connecting = connect(
            server.url.replace("http", "ws") + "/v1/telemetry", compression=None, max_size=2**24, **options
        )
        self.view = EngineView()
        self.messages: list[Any] = []

    def __enter__(self) -> Telemetry:
        self.connection = self._connecting.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self.connection.close()

    def send(self, kind: str, **fields: Any) -> None:
        self.connection.send(json.dumps({"type": f"telemetry.{kind}", **fields}))

    def receive(self, timeout: float = PATIENCE) -> Any:
        text = self.connection.recv(timeout)
        assert isinstance(text, str)
        message = decode(text, SERVER_MESSAGES)
        assert message.sequence_number == len(self.messages)
        self.messages.append(message)
        if isinstance(message, (TelemetrySnapshot, TelemetryUpdate)):
            self.view.apply(message)
        return message

    def until(self, condition: Callable[[], bool]) -> None:
        give_up = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < give_up
            self.receive()

    def until_answer(self, kind: str) -> Any:
        """The next message of a kind; updates may come before it."""
        while (message := self.receive()).type != kind:
            assert isinstance(message, (TelemetrySnapshot, TelemetryUpdate)), message
        return message

    def subscribe(self, **wishes: Any) -> TelemetrySnapshot:
        self.send("subscribe", **{"rate": FAST, "owners": True, **wishes})
        message = self.until_answer("telemetry.snapshot")
        assert isinstance(message, TelemetrySnapshot)
        return message

    def silence(self, seconds: float) -> bool:
        """Whether nothing comes for so long."""
        with contextlib.suppress(TimeoutError):
            self.receive(seconds)
            return False
        return True


def complete(server: RunningServer, prompt: list[int], max_tokens: int = 8, **fields: Any) -> None:
    body = {"model": "letters", "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, **fields}
    with server.client() as client:
        client.post("/v1/completions", json=body).raise_for_status()


@contextlib.contextmanager
def stream(server: RunningServer, prompt: list[int], max_tokens: int = 300) -> Iterator[Iterator[str]]:
    body = {"model": "letters", "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, "stream": True}
    with server.client() as client, client.stream("POST", "/v1/completions", json=body) as response:
        assert response.status_code == 200
        lines = response.iter_lines()
        next(lines)
        yield lines
