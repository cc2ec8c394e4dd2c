"""The engine's inside as telemetry tells it, kept up to date for whoever shows it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from statistics import median

from cudaprefill.client.block_states import BlockStates
from cudaprefill.client.engine_history import EngineHistory
from cudaprefill.client.latency_window import LatencyWindow
from cudaprefill.client.view_changes import ChangeLog, Changes
from cudaprefill.protocol.telemetry import (
    EngineDescription,
    EngineSettings,
    PoolTotals,
    RequestChange,
    RequestRecord,
    StepRecord,
    TelemetrySnapshot,
    TelemetryUpdate,
)

MAX_STEPS = 5000
MAX_FINISHED = 200
EVICTED_SECONDS = 1.5  # how long a block counts as just evicted
ITLS_OF_ONE = 256  # so many of a request's own ITLs make its median


@dataclass(frozen=True, slots=True)
class StepView:
    """One step, and the numbers of all requests that decoded in it."""

    record: StepRecord
    decodes: frozenset[int]

    @property
    def num_tokens(self) -> int:
        return self.record.num_decodes + sum(length for _, _, length, _ in self.record.chunks)

    @property
    def end(self) -> float:
        return self.record.start + self.record.duration


@dataclass(slots=True)
class _Stream:
    """What is counted of one request besides its record."""

    record: RequestRecord
    tokens: int  # counted so far; `record.output_tokens` of a finished one is the server's word
    last_token: float | None
    prefill_target: int
    chunks: list[tuple[int, int]] = field(default_factory=list)
    itls: deque[float] = field(default_factory=lambda: deque(maxlen=ITLS_OF_ONE))


class EngineView:
    """Applies telemetry. Not thread-safe.

    Until the first snapshot `engine`, `settings` and `pool` are None and updates are passed over.

    clock: seconds, to know the engine's time between two messages; a replay gives its own.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        max_steps: int = MAX_STEPS,
        max_finished: int = MAX_FINISHED,
    ) -> None:
        self.engine: EngineDescription | None = None
        self.settings: EngineSettings | None = None
        self.pool: PoolTotals | None = None
        self.time = 0.0  # of the last message, by the engine's clock
        self.unix_offset = 0.0  # what to add to the engine's clock for the time on the wall
        self.step = 0  # the last one that ended
        self.requests: dict[int, RequestRecord] = {}  # by number, in order of arrival
        self.steps: deque[StepView] = deque(maxlen=max_steps)
        self.num_steps = 0  # that were ever put into `steps`
        self.dropped_steps = 0
        self.blocks = BlockStates()
        self.ttft = LatencyWindow()
        self.itl = LatencyWindow()
        self.history = EngineHistory()
        self.hit_tokens = 0  # of `prompt_tokens`
        self.prompt_tokens = 0  # of all requests that were scheduled
        self._clock = clock
        self._received = clock()
        self._max_finished = max_finished
        self._finished: deque[int] = deque()
        self._streams: dict[int, _Stream] = {}
        self._decodes: frozenset[int] = frozenset()
        self._decoding: list[_Stream] = []
        self._changes = ChangeLog()

    # --- What can be read ---

    def now(self) -> float:
        """The engine's clock now, as far as can be told from the last message."""
        return self.time + (self._clock() - self._received)

    def itl_p50(self, number: int) -> float | None:
        """Median of the newest ITLs of one request, in seconds."""
        stream = self._streams.get(number)
        return median(stream.itls) if stream is not None and stream.itls else None

    def ttft_of(self, number: int) -> float | None:
        record = self.requests.get(number)
        return None if record is None or record.first_token is None else record.first_token - record.arrived

    def chunks_of(self, number: int) -> list[tuple[int, int]]:
        """Start and length of each chunk of a request's last prefill, as far as they were seen."""
        stream = self._streams.get(number)
        return stream.chunks if stream is not None else []

    def prefill_tokens(self, number: int) -> int:
        """What the last prefill of a request has to compute, hits included: after a preemption its output as well."""
        stream = self._streams.get(number)
        return stream.prefill_target if stream is not None else 0

    def number_of(self, request_id: str) -> int | None:
        return next((number for number, record in self.requests.items() if record.id == request_id), None)

    def step_view(self, number: int) -> StepView | None:
        """A step that is still in the history. Numbers only grow, but some may be missing."""
        low, high = 0, len(self.steps)
        while low < high:
            middle = (low + high) // 2
            if self.steps[middle].record.number < number:
                low = middle + 1
            else:
                high = middle
        return self.steps[low] if low < len(self.steps) and self.steps[low].record.number == number else None

    def slowest_step_of(self, number: int) -> StepView | None:
        """Of the steps in the history that gave the request a token by decoding, the one that took longest."""
        decoded = (step for step in self.steps if number in step.decodes)
        return max(decoded, key=lambda step: step.record.duration, default=None)

    @property
    def num_running(self) -> int:
        return sum(record.state in ("prefilling", "decoding") for record in self.requests.values())

    @property
    def num_waiting(self) -> int:
        return sum(record.state == "waiting" for record in self.requests.values())

    def first_waiting(self) -> int | None:
        """Number of the request that is next to be admitted: the least priority value, then the earliest arrival."""
        waiting = [record for record in self.requests.values() if record.state == "waiting"]
        first = min(waiting, key=lambda record: (record.priority, record.arrived, record.number), default=None)
        return first.number if first is not None else None

    @property
    def waste(self) -> float | None:
        """Share of the used blocks' slots that hold nothing; None while none is used, or where it is not known."""
        if self.pool is None or self.engine is None or self.pool.used <= 0 or self.engine.block_size <= 0:
            return None
        if self.pool.used_tokens is None:
            return None
        return max(0.0, 1 - self.pool.used_tokens / (self.pool.used * self.engine.block_size))

    @property
    def hit_rate(self) -> float | None:
        """Share of the prompt tokens of all scheduled requests that were prefix hits; None before the first."""
        return self.hit_tokens / self.prompt_tokens if self.prompt_tokens else None

    def watch(self) -> ViewWatch:
        """Something that says what changed since it was last asked; at first, everything did."""
        return ViewWatch(self)

    # --- Telemetry comes in ---

    def apply(self, message: TelemetrySnapshot | TelemetryUpdate) -> None:
        if isinstance(message, TelemetrySnapshot):
            self._apply_snapshot(message)
        elif self.engine is not None:
            self._apply_update(message)
        else:
            return
        self.time = message.time
        self._received = self._clock()

    def _apply_snapshot(self, snapshot: TelemetrySnapshot) -> None:
        self._changes.reset()
        goes_on = (
            snapshot.reason != "restarted"
            and snapshot.engine == self.engine
            and snapshot.time >= self.time
            and snapshot.step >= self.step
        )
        if not goes_on:
            self._forget_history()
        self.engine, self.settings, self.pool = snapshot.engine, snapshot.settings, snapshot.pool
        self.step = snapshot.step
        self.unix_offset = snapshot.unix_time - snapshot.time
        self._decodes, self._decoding = frozenset(), []
        self._take_requests(snapshot.requests or [])
        self.blocks.reset(snapshot.blocks, snapshot.owners)
        second = self.history.at(snapshot.time)
        second.used_blocks, second.waiting = snapshot.pool.used, self.num_waiting

    def _forget_history(self) -> None:
        self.requests.clear()
        self._streams.clear()
        self._finished.clear()
        self.steps.clear()
        for window in (self.ttft, self.itl, self.history):
            window.clear()
        self.num_steps = self.dropped_steps = self.hit_tokens = self.prompt_tokens = 0

    def _take_requests(self, records: Iterable[RequestRecord]) -> None:
        """Those that are alive now; of those known before, only the finished ones stay."""
        before = self._streams
        finished = [number for number in self._finished if number in self.requests]
        self.requests = {number: self.requests[number] for number in finished}
        self._streams = {number: before[number] for number in finished}
        for record in records:
            if record.first_scheduled is not None and record.number not in before:
                self._count_hits(record)
            stream = self._add(record)
            if record.number in before and record.preemptions == before[record.number].record.preemptions:
                stream.itls, stream.chunks = before[record.number].itls, before[record.number].chunks
                stream.prefill_target = before[record.number].prefill_target

    def _add(self, record: RequestRecord) -> _Stream:
        target = record.prompt_tokens + record.output_tokens
        if record.state == "decoding":  # its prefill is over
            target = record.computed_tokens or record.prompt_tokens
        stream = _Stream(record, record.output_tokens, record.last_token, target)
        self.requests[record.number] = record
        self._streams[record.number] = stream
        return stream

    def _apply_update(self, update: TelemetryUpdate) -> None:
        self._changes.begin()
        # What happened in or after a step comes before what the step's tokens say; a request's last token, and its
        # end, are of one step, so its end must not take the token away.
        changes = deque(update.requests or ())
        if update.dropped_steps > 0:
            self.dropped_steps += update.dropped_steps
            for stream in self._decoding:
                stream.last_token = None  # when the tokens of the lost steps came is not known
        for step in update.steps or ():
            while changes and changes[0].step <= step.number:
                self._change(changes.popleft())
            self._add_step(step)
        for change in changes:
            self._change(change)
        if update.records is not None:  # counting tokens was short where steps were dropped
            for number in self.requests:
                self._changes.touch(number)
            self._take_requests(update.records)
            self._decoding = [self._streams[number] for number in sorted(self._decodes) if number in self._streams]
        if update.settings is not None:
            self.settings = update.settings
            self._changes.touch_settings()
        if update.pool is not None:
            self.pool = update.pool
            self.history.at(update.time).used_blocks = update.pool.used
        changed_blocks = self.blocks.apply(update.blocks or (), update.time)
        changed_blocks += self.blocks.apply_owners(update.owners or {})
        self._changes.touch_blocks(changed_blocks)

    # --- Steps ---

    def _add_step(self, step: StepRecord) -> None:
        if step.joined or step.left:
            self._decodes = self._decodes.difference(step.left).union(step.joined)
            self._decoding = [self._streams[number] for number in sorted(self._decodes) if number in self._streams]
        end = step.start + step.duration
        second = self.history.at(end)
        second.output_tokens += len(self._decodes)
        second.prompt_tokens += sum(length for _, _, length, _ in step.chunks)
        second.waiting = step.num_waiting
        self.steps.append(StepView(step, self._decodes))
        self.num_steps += 1
        self.step = step.number
        self._count_tokens(end)

    def _count_tokens(self, end: float) -> None:
        """A token for every decode. Most have the same ITL, the time between two steps."""
        common, count = -1.0, 0
        touch = self._changes.touch
        for stream in self._decoding:
            record = stream.record
            if record.finished is not None and stream.tokens >= record.output_tokens:
                continue  # was aborted while the step ran: its token is dropped
            stream.tokens += 1
            if record.finished is None:
                record.output_tokens = stream.tokens
                if record.state != "decoding":
                    record.state = "decoding"
            if stream.last_token is not None:
                itl = end - stream.last_token
                stream.itls.append(itl)
                if itl != common:
                    if count:
                        self.itl.add(end, common, count)
                    common, count = itl, 0
                count += 1
            stream.last_token = record.last_token = end
            touch(record.number)
        if count:
            self.itl.add(end, common, count)

    # --- Requests ---

    def _change(self, change: RequestChange) -> None:
        if change.kind == "arrived":
            self._arrive(change)
            return
        stream = self._streams.get(change.number)
        if stream is None or stream.record.finished is not None:
            return
        record = stream.record
        if change.kind == "scheduled":
            record.state = "prefilling"
            record.computed_tokens = change.hit_tokens or 0
            stream.chunks.clear()
            if record.first_scheduled is None:
                record.first_scheduled = change.time
                record.hit_tokens = change.hit_tokens or 0
                self._count_hits(record)
        elif change.kind == "chunk":
            self._chunk(stream, change)
        elif change.kind == "first_token":
            self._first_token(stream, change.time)
        elif change.kind == "preempted":
            record.state = "waiting"
            record.computed_tokens = 0
            record.preemptions += 1
            stream.prefill_target = record.prompt_tokens + stream.tokens
        elif change.kind == "finished":
            self._finish(stream, change)
        self._changes.touch(change.number)

    def _arrive(self, change: RequestChange) -> None:
        if change.number in self.requests:
            return
        self._add(
            RequestRecord(
                number=change.number,
                id=change.id or f"#{change.number}",
                state="waiting",
                priority=change.priority or 0,
                arrived=change.time,
                prompt_tokens=change.prompt_tokens or 0,
                virtual_tokens=change.virtual_tokens,
                adapter=change.adapter,
                max_tokens=change.max_tokens,
            )
        )
        self._changes.touch(change.number)

    def _chunk(self, stream: _Stream, change: RequestChange) -> None:
        """The last chunk after a preemption yields a token, for which there is no station."""
        record = stream.record
        record.computed_tokens = (change.start or 0) + (change.length or 0)
        record.num_chunks += 1
        stream.chunks.append((change.start or 0, change.length or 0))
        if record.first_token is not None and record.computed_tokens >= stream.prefill_target:
            record.state = "decoding"
            self._count_token(stream, change.time)

    def _first_token(self, stream: _Stream, time: float) -> None:
        record = stream.record
        record.state = "decoding"
        record.computed_tokens = record.prompt_tokens
        if record.first_token is None:
            record.first_token = time
            self.ttft.add(time, time - record.arrived)
            self._count_token(stream, time)

    def _count_token(self, stream: _Stream, time: float) -> None:
        if stream.last_token is not None:
            itl = time - stream.last_token
            stream.itls.append(itl)
            self.itl.add(time, itl)
        stream.tokens += 1
        stream.record.output_tokens = stream.tokens
        stream.last_token = stream.record.last_token = time
        self.history.at(time).output_tokens += 1

    def _finish(self, stream: _Stream, change: RequestChange) -> None:
        record = stream.record
        record.state = "finished"
        record.finished = change.time
        record.finish_reason = change.reason
        if change.output_tokens is not None:
            record.output_tokens = change.output_tokens
        self._finished.append(record.number)
        self._changes.touch_blocks(self.blocks.forget_owner(record.number))
        while len(self._finished) > self._max_finished:
            oldest = self._finished.popleft()
            self.requests.pop(oldest, None)
            self._streams.pop(oldest, None)
            self._changes.forget(oldest)

    def _count_hits(self, record: RequestRecord) -> None:
        self.hit_tokens += record.hit_tokens
        self.prompt_tokens += record.prompt_tokens

    def _forget_marks(self) -> None:
        old = self.blocks.forget_evicted(self.now() - EVICTED_SECONDS)
        if old:
            self._changes.begin()
            self._changes.touch_blocks(old)


class ViewWatch:
    """One reader's place in an EngineView."""

    def __init__(self, view: EngineView) -> None:
        self._view = view
        self._version = -1
        self._num_steps = 0

    def take(self) -> Changes:
        view = self._view
        view._forget_marks()
        since, self._version = self._version, view._changes.version
        steps, self._num_steps = view.num_steps - self._num_steps, view.num_steps
        return view._changes.since(since, len(view.steps) if steps < 0 else min(steps, len(view.steps)))
