"""A recording instead of a server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from cudaprefill.client.engine_view import EngineView
from cudaprefill.protocol.account import Account
from cudaprefill.protocol.itl_target import ItlTarget
from cudaprefill.protocol.telemetry import ServerMessage, TelemetryBlock

from .backend import Message
from .conversations import ChatSettings
from .engine_link import AnswerStream, EngineLink, LinkError

MIN_SPEED, MAX_SPEED = 1 / 16, 64.0
STEP_SECONDS = 1 / 10  # messages that are due within one step are applied together


class PlaybackTime:
    """Seconds into the recording: goes on with the clock, at some speed, unless it is paused."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen = clock()
        self._position = 0.0
        self.speed = 1.0
        self.paused = False

    def __call__(self) -> float:
        now = self._clock()
        if not self.paused:
            self._position += (now - self._seen) * self.speed
        self._seen = now
        return self._position


class PlaybackLink(EngineLink):
    """Plays what was recorded once. Nothing can be asked of it but what `explain` knows."""

    def __init__(
        self,
        path: Path,
        messages: Iterator[tuple[float, ServerMessage]],
        speed: float = 1.0,
        *,
        explain: Callable[[str], Account] | None = None,
    ) -> None:
        """Raises what `messages` raise for a file that is none, at once rather than when it is played.

        messages: with their seconds since the first. explain: raises KeyError for a request that it does not know.
        """
        self._time = PlaybackTime()
        self._time.speed = min(max(speed, MIN_SPEED), MAX_SPEED)
        super().__init__(str(path), EngineView(clock=self._time))
        self._path = path
        self._ended = False
        self._messages = messages
        self._explain = explain
        self._next = next(self._messages, None)
        if self._next is None:
            raise ValueError(f"{path} holds no telemetry")

    @property
    def name(self) -> str:
        return self._path.name

    @property
    def paused(self) -> bool:
        return self._time.paused

    @paused.setter
    def paused(self, paused: bool) -> None:
        self._time()
        self._time.paused = paused
        self.tell_news()

    def change_speed(self, factor: float) -> None:
        self._time()
        self._time.speed = min(max(self._time.speed * factor, MIN_SPEED), MAX_SPEED)
        self.tell_news()

    @property
    def state_words(self) -> str:
        minutes, seconds = divmod(int(self._time()), 60)
        mark = "■ ended" if self._ended else "⏸ paused" if self.paused else "▶"
        return f"{mark} {minutes}:{seconds:02} at {self._time.speed:g}x"

    async def run(self) -> None:
        while self._next is not None:
            while self._next is not None and self._next[0] <= self._time():
                self.apply(self._next[1])
                self._advance()
            await asyncio.sleep(STEP_SECONDS)
        self._ended = True
        self.paused = True

    def _advance(self) -> None:
        try:
            self._next = next(self._messages, None)
        except (ValueError, OSError) as error:
            self._next = None
            self.set_state("lost", str(error))

    def respond(self, messages: list[Message], settings: ChatSettings) -> AnswerStream:
        raise LinkError("a recording answers nothing")

    async def change_settings(
        self,
        *,
        max_num_batched_tokens: int | None = None,
        long_prefill_token_threshold: int | None = None,
        itl_target_ms: ItlTarget | None = None,
    ) -> None:
        raise LinkError("a recording has no settings to change")

    async def abort(self, request_id: str) -> None:
        raise LinkError("what is recorded has happened")

    async def reset_prefix_cache(self) -> None:
        raise LinkError("what is recorded has happened")

    async def set_owners(self, wanted: bool) -> None:
        """Owners are there if they were recorded."""

    async def describe_block(self, block: int) -> TelemetryBlock:
        raise LinkError(f"a recording does not hold what was in block {block}")

    async def explain(self, request_id: str) -> Account:
        if self._explain is None:
            raise LinkError(f"a recording does not hold where the time of {request_id} went")
        try:
            return await asyncio.to_thread(self._explain, request_id)
        except KeyError:
            raise LinkError(f"{self.name} has no request {request_id!r}") from None

    async def close(self) -> None:
        """What is not played yet is left alone."""
