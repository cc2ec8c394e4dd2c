"""From one engine to any number of subscribers: one pull and one encoding for all who wait for the same."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from cudaprefill.errors import EngineDeadError
from cudaprefill.observe.events import RequestEvent, StepEvent
from cudaprefill.observe.metrics import Metrics
from cudaprefill.protocol.codec import encode
from cudaprefill.protocol.telemetry import TelemetrySnapshot, TelemetryUpdate
from cudaprefill.server.engine_settings import describe_engine
from cudaprefill.server.telemetry.feed import Cursor, EnginePull, SnapshotReason, TelemetryFeed, Wish

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from cudaprefill.async_engine import AsyncEngine
    from cudaprefill.engine.engine import Engine


class Encoded(NamedTuple):
    """A message around its sequence number, which is all that differs between its readers."""

    head: str
    tail: str

    @classmethod
    def of(cls, message: TelemetrySnapshot | TelemetryUpdate) -> Encoded:
        name = '"sequence_number":'
        head, _, tail = encode(message).partition(f"{name}{message.sequence_number},")
        return cls(head + name, "," + tail)

    def numbered(self, sequence_number: int) -> str:
        return f"{self.head}{sequence_number}{self.tail}"


class _Message(NamedTuple):
    encoded: Encoded | None  # None: there is no news
    cursor: Cursor
    dropped_steps: int = 0
    dropped_differences: bool = False


class TelemetryHub:
    """Listens to the engine while there are subscriptions. Belongs to one event loop.

    It never looks at the engine of its own accord: events are news, news wake the subscriptions, and the first of these
    to reach its tick pulls, for all of them, what events do not tell.
    """

    def __init__(self, metrics: Metrics) -> None:
        """`metrics` is told of the engine's events before this hub is; it counts what telemetry drops."""
        self._metrics = metrics
        self._engine: AsyncEngine | None = None
        self._feed: TelemetryFeed | None = None
        self._stop_listening: Callable[[], None] | None = None
        self._subscriptions: set[Subscription] = set()
        self._switching = asyncio.Lock()  # around the start and the end of listening
        self._pull: asyncio.Task[None] | None = None
        self._stale = False  # there is news since the last pull began
        self._messages: dict[object, _Message] = {}  # of the feed's present position
        self._position: object = None

    # --- The engine's side ---

    def use(self, engine: AsyncEngine) -> None:
        """From here on telemetry is of this engine; those who saw another one get a snapshot that says so."""
        self._engine = engine
        self._forget_feed()
        for subscription in self._subscriptions:
            subscription.restart()

    def _on_events(self, events: Sequence[RequestEvent | StepEvent]) -> None:
        """Without events something changed that none tells, such as the settings or the prefix cache."""
        if self._feed is None:
            return
        self._feed.on_events(events)
        self._stale = True
        for subscription in self._subscriptions:
            subscription.news.set()

    def _forget_feed(self) -> None:
        if self._stop_listening is not None:
            self._stop_listening()
        self._feed = self._stop_listening = None
        self._messages.clear()

    # --- The subscribers' side ---

    def subscribe(self, wish: Wish, rate: float) -> Subscription:
        """rate: updates a second, at most. The subscription is to be given back to `unsubscribe`."""
        subscription = Subscription(self, wish, rate)
        self._subscriptions.add(subscription)
        return subscription

    async def unsubscribe(self, subscription: Subscription) -> None:
        self._subscriptions.discard(subscription)
        async with self._switching:
            if self._subscriptions or self._feed is None or self._engine is None:
                return
            self._forget_feed()
            with contextlib.suppress(EngineDeadError):
                await self._engine.call(_stop_recording)

    async def refresh(self, *, with_owners: bool = False) -> None:
        """Pulls what changed since the last pull, once for all who want it; begins to listen if nobody did.

        with_owners: also if nothing changed, for one who may be the first to want them.
        Raises EngineDeadError while there is no engine.
        """
        await self._listen()
        if with_owners:
            if self._pull is not None:  # it may have begun without
                await asyncio.shield(self._pull)
            self._stale = True
        if self._pull is None and self._stale:
            self._pull = asyncio.create_task(self._pull_once())
        if self._pull is not None:
            await asyncio.shield(self._pull)

    async def _listen(self) -> None:
        async with self._switching:
            if self._feed is not None:
                return
            engine = self._engine
            if engine is None:
                raise EngineDeadError("the engine is being started")
            states, virtual, pull = await engine.call(_start_recording)
            if engine is not self._engine:
                raise EngineDeadError("the engine was replaced")
            self._feed = TelemetryFeed(
                describe_engine(engine.info), engine.settings, self._metrics.requests, states, virtual
            )
            self._feed.apply(pull)
            self._stop_listening = engine.events.subscribe(self._on_events)

    async def _pull_once(self) -> None:
        self._stale = False
        try:
            engine, feed = self._engine, self._feed
            if engine is not None and feed is not None:
                with_owners = any(subscription.wish.wants_owners for subscription in self._subscriptions)
                feed.apply(await engine.call(lambda engine: pull_from(engine, with_owners)))
                feed.change_settings(engine.settings)
        finally:
            self._pull = None

    def message(self, wish: Wish, cursor: Cursor | None, reason: SnapshotReason) -> _Message:
        """A snapshot without a cursor; with one, what is new since then. Raises EngineDeadError without an engine."""
        feed = self._feed
        if feed is None:
            raise EngineDeadError("the engine is being started")
        if self._position != feed.position:
            self._messages.clear()
            self._position = feed.position
        key = (wish, cursor, reason)
        message = self._messages.get(key)
        if message is None:
            content, now = feed.snapshot(wish, reason) if cursor is None else feed.update(wish, cursor)
            message = self._messages[key] = _Message(
                None if content is None else Encoded.of(content),
                now,
                content.dropped_steps if isinstance(content, TelemetryUpdate) else 0,
                isinstance(content, TelemetrySnapshot) and content.reason == "dropped",
            )
        self._metrics.telemetry_dropped_steps += message.dropped_steps
        self._metrics.telemetry_dropped_snapshots += message.dropped_differences
        return message


class Subscription:
    """One subscriber's place. However long it does not ask for the next message, nothing piles up for it."""

    def __init__(self, hub: TelemetryHub, wish: Wish, rate: float) -> None:
        self.news = asyncio.Event()
        self._hub = hub
        self._hurry = asyncio.Event()
        self.change(wish, rate)

    def change(self, wish: Wish, rate: float) -> None:
        """Other wishes from here on: the next message is a snapshot."""
        self.wish, self.rate = wish, rate
        self._begin("subscribed")

    def restart(self) -> None:
        """There is a new engine."""
        self._begin("subscribed" if self._cursor is None else "restarted")

    def _begin(self, reason: SnapshotReason) -> None:
        self._cursor: Cursor | None = None
        self._reason = reason
        self.news.set()
        self._hurry.set()

    async def next(self) -> Encoded:
        """Waits for news, then for the next tick: a snapshot or an update."""
        while True:
            await self.news.wait()
            if self._cursor is not None:
                await self._until_tick()
            self.news.clear()
            self._hurry.clear()
            try:
                await self._hub.refresh(with_owners=self._cursor is None and self.wish.wants_owners)
                message = self._hub.message(self.wish, self._cursor, self._reason)
            except EngineDeadError:
                continue  # when there is an engine again, that is news
            self._cursor = message.cursor
            if message.encoded is not None:
                return message.encoded

    async def _until_tick(self) -> None:
        """Ticks of one rate fall together for all, so that they can share what is pulled and encoded."""
        period = 1 / self.rate
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._hurry.wait(), period - asyncio.get_running_loop().time() % period)


# --- In the engine's thread, between two steps ---


def pull_from(engine: Engine, with_owners: bool) -> EnginePull:
    scheduler = engine.scheduler
    return EnginePull(
        pool=scheduler.pool_totals(),
        changes=scheduler.take_block_changes(),
        tables=scheduler.block_tables() if with_owners else None,
    )


def _start_recording(engine: Engine) -> tuple[NDArray[np.uint8], NDArray[np.bool_], EnginePull]:
    engine.scheduler.record_blocks(True)
    pool = engine.scheduler.pool
    return pool.states(), pool.virtual_blocks(), pull_from(engine, with_owners=False)


def _stop_recording(engine: Engine) -> None:
    engine.scheduler.record_blocks(False)
