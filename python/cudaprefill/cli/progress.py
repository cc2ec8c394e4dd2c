"""Progress on standard error: a bar on a terminal, a line where there is none."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from types import TracebackType
from typing import TextIO

from cudaprefill.garbage import uncollected

REDRAW_SECONDS = 0.1
BAR_WIDTH = 30


class Progress:
    """`with Progress("loading weights") as progress: progress(done, total)`.

    Silent when the work took less than `patience` seconds, so that quick starts stay quiet.
    """

    def __init__(self, what: str, stream: TextIO | None = None, patience: float = 0.5) -> None:
        self._what = what
        self._stream = stream or sys.stderr
        self._started = time.monotonic()
        self._drawn = self._started + patience - REDRAW_SECONDS
        self._shown = False

    def __call__(self, done: float, total: float) -> None:
        now = time.monotonic()
        if now - self._drawn < REDRAW_SECONDS:
            return
        self._drawn = now
        if self._stream.isatty():
            share = done / total if total else 1.0
            bar = ("█" * round(share * BAR_WIDTH)).ljust(BAR_WIDTH, "░")
            self._stream.write(f"\rcudaprefill: {self._what} {bar} {share:4.0%}")
            self._stream.flush()
        elif not self._shown:
            self._stream.write(f"cudaprefill: {self._what} ...\n")
        self._shown = True

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shown:
            start = "\r\x1b[K" if self._stream.isatty() else ""
            outcome = "failed after" if error else "took"
            self._stream.write(f"{start}cudaprefill: {self._what} {outcome} {time.monotonic() - self._started:.1f} s\n")
            self._stream.flush()


@contextlib.contextmanager
def loading_model() -> Iterator[Progress]:
    """Around the loading of a model, which every command does in the same way."""
    with uncollected(), Progress("loading the model") as progress:
        yield progress
