"""A trace file: every event of a run, written as it happens and read back.

The engine's thread only appends to a queue of bounded length; a thread of the writer's own encodes and writes. FILE is
the newest part; when it has grown to its limit it becomes FILE.1, FILE.1 becomes FILE.2, and so on. Each part opens
with a header and can be read without the others. trace_lines.py gives the lines.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import threading
import time
import uuid
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from cudaprefill.observe.events import RequestEvent, StepEvent
from cudaprefill.observe.trace_lines import LineDecoder, LineEncoder, dump_line

FORMAT = 1
MAX_BYTES = 256 * 2**20
MAX_FILES = 4
MAX_PENDING = 100_000  # events
FLUSH_SECONDS = 1.0
_ALIVE_SECONDS = 1.0  # after which one who waits looks whether the writer's thread is still there

logger = logging.getLogger(__name__)

Event = RequestEvent | StepEvent


@dataclass(frozen=True)
class TraceHeader:
    """What a run is: settings as plain values, by name."""

    version: str  # of cudaprefill
    engine: dict[str, Any]  # EngineInfo
    scheduler: dict[str, Any]  # SchedulerConfig
    time: float  # seconds of the engine's clock at the beginning; the lines count from here
    unix_time: float  # the same moment on the wall
    run: str = field(default_factory=lambda: uuid.uuid4().hex)  # the same in all parts


class TraceWriter:
    """Writes the events that `record` is given.

    A file that cannot be opened raises OSError here. Later nothing is raised: what cannot be written (a full disk, a
    thread that does not keep up) is dropped and counted, in `num_dropped` and in the file, and `error` says why.

    path: of the newest part. Parts of an earlier run are pushed on as if they had grown to their limit.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        header: TraceHeader,
        *,
        max_bytes: int = MAX_BYTES,
        max_files: int = MAX_FILES,
        max_pending: int = MAX_PENDING,
        flush_seconds: float = FLUSH_SECONDS,
        open_file: Callable[[Path], BinaryIO] = lambda path: open(path, "ab", buffering=0),  # noqa: SIM115
    ) -> None:
        self.path = Path(path)
        self.num_dropped = 0
        self.error: OSError | None = None
        self._header = header
        self._max_bytes = max_bytes
        self._max_files = max_files
        self._max_pending = max_pending
        self._flush_seconds = flush_seconds
        self._open_file = open_file
        self._pending: deque[Event] = deque()
        self._num_dropped_said = 0
        self._encoder = LineEncoder(header.time)
        self._must_restart = True  # the file does not say what the encoder thinks its reader knows
        self._torn = False  # the file ends in the middle of a line
        self._size = 0
        self._num_events = 0  # in this part
        if self.path.exists() and self.path.stat().st_size > 0:
            self._push_parts_on()
        self._file: BinaryIO | None = self._open_file(self.path)
        self._flush()
        self._require_written()
        self._closing = False
        self._wake = threading.Event()
        self._drains: deque[threading.Event] = deque()
        self._thread = threading.Thread(target=self._run, name="cudaprefill-trace", daemon=True)
        self._thread.start()

    def record(self, event: Event) -> None:
        """Never blocks and never raises."""
        if len(self._pending) < self._max_pending:
            self._pending.append(event)
        else:
            self.num_dropped += 1

    def record_all(self, events: Iterable[Event]) -> None:
        for event in events:
            self.record(event)

    def drain(self) -> None:
        """Returns when all that was recorded before is in the file, or counts as dropped."""
        drained = threading.Event()
        self._drains.append(drained)
        self._wake.set()
        while not drained.wait(_ALIVE_SECONDS) and self._thread.is_alive():
            pass

    def processor_seconds(self) -> float:
        """That the writer's thread has taken so far."""
        assert self._thread.ident is not None
        return time.clock_gettime(time.pthread_getcpuclockid(self._thread.ident))

    def close(self) -> None:
        """Writes what is left. Harmless when repeated."""
        self._closing = True
        self._wake.set()
        self._thread.join()

    def _require_written(self) -> None:
        if self.error is not None:
            if self._file is not None:
                self._file.close()
            raise self.error

    def _run(self) -> None:
        while not self._closing:
            self._wake.wait(self._flush_seconds)
            self._wake.clear()
            drains = [self._drains.popleft() for _ in range(len(self._drains))]
            self._flush()
            for drained in drains:
                drained.set()
        self._flush()
        if self._file is not None:
            self._file.close()

    def _flush(self) -> None:
        waiting = len(self._pending)
        while waiting or self._must_restart:
            head, events = self._encode(waiting)
            waiting -= len(events)
            if not self._write(head, events) and not waiting:
                return
            if self._size >= self._max_bytes and self._num_events:
                self._next_part()

    def _encode(self, most: int) -> tuple[bytes, list[bytes]]:
        """What must come first, and the next events until this part is full, at most so many."""
        lines: list[Any] = [self._header_line(), *self._encoder.restart()] if self._must_restart else []
        if self.num_dropped > self._num_dropped_said:
            lines.append(["d", self.num_dropped - self._num_dropped_said])
        head = b"".join(map(dump_line, lines))
        room = self._max_bytes - self._size - len(head)
        events: list[bytes] = []
        while len(events) < most and (room > 0 or not events):
            events.append(b"".join(map(dump_line, self._encoder.encode(self._pending.popleft()))))
            room -= len(events[-1])
        return head, events

    def _write(self, head: bytes, events: list[bytes]) -> bool:
        """Whether all is written; events that did not get into the file count as dropped."""
        dropped = self.num_dropped
        start = (b"\n" if self._torn else b"") + head
        data = b"".join((start, *events))
        written = 0
        try:
            if self._file is None:
                self._file = self._open_file(self.path)
            written = self._file.write(data) or 0
            if written < len(data):
                raise OSError(f"{self.path}: wrote {written} of {len(data)} bytes")
        except OSError as error:
            if self.error is None:
                logger.warning("the trace %s loses events: %s", self.path, error)
            self.error = error
        ends = list(itertools.accumulate(map(len, events), initial=len(start)))[1:]
        num_written = bisect_right(ends, written)
        self._size += written
        self._num_events += num_written
        self.num_dropped += len(events) - num_written
        complete = written == len(data)
        self._must_restart = not complete
        self._torn = not complete and (self._torn or written > 0)
        if complete:
            self._num_dropped_said = dropped
        return complete

    def _next_part(self) -> None:
        self._must_restart, self._torn = True, False
        self._size = self._num_events = 0
        try:
            if self._file is not None:
                self._file.close()
            self._file = None
            self._push_parts_on()
        except OSError as error:
            self.error = error

    def _push_parts_on(self) -> None:
        """FILE becomes FILE.1, and so on; the oldest goes."""
        parts = [self.path, *(part_of(self.path, number) for number in range(1, self._max_files))]
        for older, newer in zip(parts[:0:-1], parts[-2::-1], strict=True):
            if newer.exists():
                newer.replace(older)
        if self._max_files == 1:
            self.path.unlink()

    def _header_line(self) -> dict[str, Any]:
        return {"cudaprefill_trace": FORMAT, **vars(self._header)}


def part_of(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")


@dataclass(frozen=True)
class Trace:
    """A trace that was read, from the oldest part of the run that is still there."""

    header: TraceHeader
    events: list[Event]
    num_dropped: int  # events that the writer says it lost
    num_unreadable: int  # lines cut off by a crash or a full disk, and those that refer to them

    @property
    def steps(self) -> list[StepEvent]:
        return [event for event in self.events if isinstance(event, StepEvent)]

    @property
    def request_events(self) -> list[RequestEvent]:
        return [event for event in self.events if isinstance(event, RequestEvent)]


def read_trace(path: str | Path) -> Trace:
    """Reads FILE and, before it, the parts of the same run that it was pushed on to.

    Raises OSError, and ValueError for a file that is not a trace.
    """
    path = Path(path)
    header = _header(_first_line(path), path)
    parts = [path]
    while (older := part_of(path, len(parts))).exists() and _header(_first_line(older), older).run == header.run:
        parts.append(older)
    decoder = LineDecoder()
    events: list[Event] = []
    num_unreadable = 0
    for part in reversed(parts):
        for line in part.read_bytes().splitlines():
            try:
                value = json.loads(line)
                if isinstance(value, dict):
                    decoder.restart(_header(value, part).time)
                else:
                    events += decoder.decode(value)
            except (ValueError, KeyError, IndexError, TypeError):
                num_unreadable += 1
    return Trace(header, events, decoder.num_dropped, num_unreadable)


def _first_line(path: Path) -> object:
    with path.open("rb") as file:
        try:
            return json.loads(file.readline())
        except ValueError:
            raise ValueError(f"{path} is not a trace: its first line is not JSON") from None


def _header(value: object, path: Path) -> TraceHeader:
    if not isinstance(value, dict) or "cudaprefill_trace" not in value:
        raise ValueError(f"{path} is not a trace: its first line is no header")
    if value["cudaprefill_trace"] != FORMAT:
        raise ValueError(f"{path} has format {value['cudaprefill_trace']}, this version reads {FORMAT}")
    return TraceHeader(**{name: value[name] for name in TraceHeader.__dataclass_fields__})
