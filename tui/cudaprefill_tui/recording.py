"""Telemetry in a file: a JSON object a line, each with its time and the message as it came."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

from cudaprefill.protocol.codec import ProtocolError, build, encode, parse_object
from cudaprefill.protocol.telemetry import SERVER_MESSAGES, ServerMessage


class Recorder:
    """Writes {"time": seconds since the first message, "message": {...}}. Use it with `with`. Raises OSError."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._file: TextIO = path.open("w", encoding="utf-8")
        self._clock = clock
        self._started: float | None = None

    def __call__(self, message: ServerMessage) -> None:
        now = self._clock()
        if self._started is None:
            self._started = now
        self._file.write(f'{{"time":{now - self._started:.6f},"message":{encode(message)}}}\n')

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()


def read_recording(path: Path) -> Iterator[tuple[float, ServerMessage]]:
    """The messages with their times, which never go back. Raises OSError, ValueError naming the line."""
    before = 0.0
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                fields = parse_object(line)
                at, message = fields.get("time"), fields.get("message")
                if isinstance(at, bool) or not isinstance(at, (int, float)) or not isinstance(message, dict):
                    raise ProtocolError("it needs a time and a message")
                kind = SERVER_MESSAGES.get(str(message.get("type")))
                if kind is None:
                    continue  # a newer recorder may have more to tell
                before = max(before, float(at))
                yield before, build(kind, message)
            except ProtocolError as error:
                raise ValueError(f"{path}, line {number}: {error}") from None
