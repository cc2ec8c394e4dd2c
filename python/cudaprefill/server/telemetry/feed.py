"""What telemetry says: snapshots, and differences from any earlier place. No sockets, no engine: see hub.py."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from cudaprefill.observe.events import RequestEvent, StepEvent
from cudaprefill.observe.records import request_change, step_records
from cudaprefill.observe.request_log import RequestLog
from cudaprefill.protocol.telemetry import (
    EngineDescription,
    EngineSettings,
    PoolTotals,
    RequestChange,
    TelemetrySnapshot,
    TelemetryUpdate,
    Topic,
)
from cudaprefill.server.telemetry.block_history import BlockHistory, OwnerHistory
from cudaprefill.server.telemetry.ring import Ring

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MAX_STEPS = 1024
MAX_REQUEST_CHANGES = 4096
# A whole map costs one byte a block and a change about eleven: past so many a snapshot is shorter.
MIN_CONDENSED = 1024
BYTES_PER_CHANGE = 11

SnapshotReason = Literal["subscribed", "dropped", "condensed", "restarted"]


@dataclass(frozen=True)
class Wish:
    """What a subscriber wants to hear of."""

    topics: frozenset[Topic]
    owners: bool = False

    @property
    def wants_owners(self) -> bool:
        return self.owners and "blocks" in self.topics


@dataclass(frozen=True)
class Cursor:
    """How far a subscriber has been told."""

    version: int
    step: int  # place in the ring of steps
    request: int  # place in the ring of request changes
    decodes: tuple[int, ...] = ()  # of the last step it was told of; empty after a snapshot


@dataclass(frozen=True)
class EnginePull:
    """What the engine was asked for between two steps. None is what nobody wanted."""

    pool: PoolTotals
    changes: NDArray[np.int32] | None = None  # [C, 4], see Scheduler.take_block_changes
    tables: Mapping[int, NDArray[np.int32]] | None = None  # request number -> block table


class TelemetryFeed:
    """News of one engine. Memory is bounded by the ring sizes and the pool, whatever the subscribers do.

    requests: what waits and runs, kept up to date by whoever also calls `on_events`.
    states, virtual: [num_blocks], the core's BlockState of each, and whether it holds virtual tokens, as it is when
        changes begin to be recorded.
    clock: seconds, the engine's.
    """

    def __init__(
        self,
        description: EngineDescription,
        settings: EngineSettings,
        requests: RequestLog,
        states: NDArray[np.uint8],
        virtual: NDArray[np.bool_],
        *,
        clock: Callable[[], float] = time.monotonic,
        max_steps: int = MAX_STEPS,
        max_request_changes: int = MAX_REQUEST_CHANGES,
    ) -> None:
        self.version = 0  # grows with every pull that finds something, and every change of the settings
        self._description = description
        self._settings = settings
        self._settings_at = 0
        self._requests = requests
        self._clock = clock
        self._steps: Ring[StepEvent] = Ring(max_steps)
        self._changes: Ring[RequestChange] = Ring(max_request_changes)
        self._blocks = BlockHistory(states, virtual)
        self._owners = OwnerHistory()
        self._pool: PoolTotals | None = None
        self._pool_at = 0

    # --- News come in ---

    def on_events(self, events: Sequence[RequestEvent | StepEvent]) -> None:
        for event in events:
            if isinstance(event, StepEvent):
                self._steps.append(event)
            else:
                self._changes.append(request_change(event))

    def apply(self, pull: EnginePull) -> None:
        version = self.version + 1
        if pull.changes is not None and len(pull.changes):
            self._blocks.update(pull.changes, version)
            self.version = version
        if pull.tables is not None and self._owners.update(pull.tables, version):
            self.version = version
        if pull.pool != self._pool:
            self._pool = pull.pool
            self._pool_at = self.version = version

    def change_settings(self, settings: EngineSettings) -> None:
        if settings != self._settings:
            self.version += 1
            self._settings, self._settings_at = settings, self.version

    # --- News go out ---

    def snapshot(self, wish: Wish, reason: SnapshotReason) -> tuple[TelemetrySnapshot, Cursor]:
        """All that is wanted as it stands, after at least one pull. Its requests change on: encode it at once."""
        if self._pool is None:
            raise RuntimeError("a snapshot was asked for before the first pull")
        snapshot = TelemetrySnapshot(
            sequence_number=0,
            reason=reason,
            time=self._clock(),
            unix_time=time.time(),
            engine=self._description,
            settings=self._settings,
            step=self._requests.step,
            pool=self._pool,
            requests=list(self._requests) if "request" in wish.topics else None,
            blocks=self._blocks.whole() if "blocks" in wish.topics else None,
            owners=self._owners.whole() if wish.wants_owners else None,
        )
        return snapshot, self._now(())

    def update(self, wish: Wish, cursor: Cursor) -> tuple[TelemetrySnapshot | TelemetryUpdate | None, Cursor]:
        """What is new since `cursor`; None without news; a snapshot where that is shorter or the only way.

        `requests` of a snapshot and `records` of an update change on: encode them at once.
        """
        if "request" in wish.topics and cursor.request < self._changes.start:
            return self.snapshot(wish, "dropped")
        if wish.wants_owners and not self._owners.remembers(cursor.version):
            return self.snapshot(wish, "dropped")
        if "blocks" in wish.topics and self._blocks.num_since(cursor.version) > self._most_block_changes():
            return self.snapshot(wish, "condensed")
        update = TelemetryUpdate(sequence_number=0, time=self._clock())
        decodes: tuple[int, ...] = ()
        if "step" in wish.topics:
            steps = self._steps.since(cursor.step)
            update.dropped_steps = max(0, self._steps.start - cursor.step)
            update.steps = step_records(steps, cursor.decodes) or None
            decodes = steps[-1].decode_numbers if steps else cursor.decodes
        if "request" in wish.topics:
            update.requests = self._changes.since(cursor.request) or None
            if update.dropped_steps:
                update.records = list(self._requests)
        if "blocks" in wish.topics:
            update.blocks = self._blocks.since(cursor.version) or None
            update.pool = self._pool if self._pool_at > cursor.version else None
        if wish.wants_owners:
            update.owners = self._owners.since(cursor.version) or None
        update.settings = self._settings if self._settings_at > cursor.version else None
        parts = (update.steps, update.requests, update.blocks, update.pool, update.owners, update.settings)
        return (update if any(part is not None for part in parts) else None), self._now(decodes)

    @property
    def position(self) -> tuple[int, int, int]:
        """Differs whenever there is news."""
        return self.version, self._steps.end, self._changes.end

    def _now(self, decodes: tuple[int, ...]) -> Cursor:
        return Cursor(*self.position, decodes)

    def _most_block_changes(self) -> int:
        return max(MIN_CONDENSED, self._description.num_blocks // BYTES_PER_CHANGE)
