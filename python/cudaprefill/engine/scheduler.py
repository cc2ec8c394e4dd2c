"""Who computes what in the next step. The whole policy is here; docs/scheduling.md explains it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from cudaprefill import _core
from cudaprefill.engine.chunk_room import ChunkRoom
from cudaprefill.engine.request import FinishReason, Request
from cudaprefill.engine.request_events import RequestEvents
from cudaprefill.engine.request_lifecycle import RequestLifecycle
from cudaprefill.engine.request_queue import RequestRows, rows_of
from cudaprefill.engine.schedule import BatchArrays, Chunk, GivenTokens, Schedule, sampled_by
from cudaprefill.engine.scheduler_config import SchedulerConfig
from cudaprefill.engine.step_cost import StepCost, StepWork, chunk_pairs
from cudaprefill.errors import QueueFullError
from cudaprefill.observe.events import RequestEvent, RequestEventKind, StepEvent
from cudaprefill.protocol.itl_target import AUTO_ITL_TARGET_MS, ItlTarget
from cudaprefill.protocol.telemetry import EngineSettings, PoolTotals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

# A prompt that has to share the budget gets at least so many tokens, so that chunks do not shrink to crumbs.
MIN_CHUNK = 64


class Scheduler:
    """Owns the block pool and the request table. Not thread-safe: the engine's thread calls it.

    A step is `schedule`, `build`, the model, `commit`, `end_step`; requests come and go between and during steps.

    on_event: is told what happens to requests; nothing is built for it when it is None.
    clock: seconds, for the events and for what steps cost. Only with an ITL target does a decision depend on time.
    hash_key, constant_hash: fix the hashes of the prefix index, for tests.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        *,
        on_event: Callable[[RequestEvent], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        hash_key: tuple[int, int] | None = None,
        constant_hash: bool = False,
    ) -> None:
        self.config = config
        self.pool = _core.BlockPool(
            config.num_blocks,
            config.block_size,
            config.enable_prefix_caching,
            hash_key=hash_key,
            constant_hash=constant_hash,
        )
        self.table = _core.RequestTable(self.pool)
        self.cost = StepCost()
        self._builder = self._make_builder()
        self._clock = clock
        self._events = RequestEvents(on_event, clock, self.table)
        self._requests = RequestLifecycle(self.table, self._events)
        self._step = 0
        self._in_flight: Schedule | None = None
        self._committed = False  # the step in flight
        self._tokens_time: float | None = None  # of the last step, if there was more to do after it
        self._block_totals = (0, 0, 0)

    @property
    def on_event(self) -> Callable[[RequestEvent], None] | None:
        return self._events.listener

    @on_event.setter
    def on_event(self, listener: Callable[[RequestEvent], None] | None) -> None:
        self._events.listener = listener

    # --- Requests come and go ---

    @property
    def num_waiting(self) -> int:
        return len(self._requests.waiting)

    @property
    def num_decoding(self) -> int:
        return len(self._requests.decoding)

    @property
    def num_running(self) -> int:
        return self._requests.num_running

    @property
    def num_steps(self) -> int:
        """The number of the last step."""
        return self._step

    def has_work(self) -> bool:
        return len(self._requests) > 0

    def add(self, request: Request) -> None:
        """Queues a request together with its siblings.

        Raises ValueError, with both numbers, for what can never run, and QueueFullError when too many wait.
        """
        self.config.refuse_impossible(
            len(request.prompt_token_ids), 1 + len(request.siblings), request.virtual_tokens.num_tokens
        )
        self._requests.refuse_ids_in_use(request)
        limit = self.config.max_num_queued_reqs
        free_seats = self.config.max_num_seqs - self._requests.seats_taken
        if limit is not None and self.num_waiting >= limit + free_seats:
            beside = f" and {free_seats} seats are free" if free_seats else ""
            raise QueueFullError(f"{self.num_waiting} requests are waiting, max_num_queued_reqs is {limit}{beside}")
        max_length = self.config.longest(request.prompt_length, request.sampling_params.max_tokens)
        self._requests.enter(request, max_length)

    def abort(self, request_id: str) -> None:
        """Ends a request at any moment, with the siblings that still depend on it; unknown ids are ignored."""
        request = self._requests.get(request_id)
        if request is not None:
            self._requests.finish(request, "abort")

    def finish(self, request: Request, reason: FinishReason, stop_reason: int | str | None = None) -> None:
        """Ends a request at any moment. Its tokens of the step in flight are dropped.

        Does nothing if it has ended; but until the end of the step whose token ended it, the reason can still be
        mended: the last token allowed may complete a stop string.
        """
        self._requests.finish(request, reason, stop_reason)

    def finish_all(self, reason: FinishReason) -> None:
        for request in list(self._requests):
            self._requests.finish(request, reason)

    # --- What can be changed between two steps ---

    @property
    def settings(self) -> EngineSettings:
        return self.config.settings

    def change_settings(
        self,
        max_num_batched_tokens: int | None = None,
        long_prefill_token_threshold: int | None = None,
        itl_target_ms: ItlTarget | None = None,
    ) -> None:
        """Changes those that are given. An ITL target of 0 takes it away.

        Raises ValueError naming the setting and both numbers; nothing is changed then.
        """
        if self._in_flight is not None:
            raise RuntimeError(f"step {self._in_flight.number} is in flight: its sizes are decided")
        before = self.config
        self.config = before.with_settings(max_num_batched_tokens, long_prefill_token_threshold, itl_target_ms)
        if self.config.max_num_batched_tokens != before.max_num_batched_tokens:
            self._builder = self._make_builder()

    def _make_builder(self) -> _core.BatchBuilder:
        config = self.config
        return _core.BatchBuilder(self.table, config.max_num_batched_tokens, config.max_num_seqs, config.max_model_len)

    # --- A step ---

    def schedule(self, now: float | None = None) -> Schedule | None:
        """Decides the next step and takes the blocks for it; None when there is nothing to do.

        The step is in flight until `end_step` or `discard`. `now` is the time of its start, by the clock if not given.
        """
        if self._in_flight is not None:
            raise RuntimeError(f"step {self._in_flight.number} is in flight: end or discard it first")
        if not self.has_work():
            return None
        start = self._begin_step(now)
        decodes, preempted = self._schedule_decodes()
        num_decodes = len(decodes.requests)
        work = StepWork(decodes=num_decodes, decode_context=self.table.total_tokens(decodes.rows))
        room = ChunkRoom(self.config.max_num_batched_tokens - num_decodes)
        self._keep_to_itl_target(room, decodes, work)
        chunks, given, waiting_for = self._schedule_chunks(room)
        if not num_decodes and not chunks:
            raise RuntimeError(f"step {self._step} makes no progress: {waiting_for}")
        if chunks:
            work = work._replace(
                chunk_tokens=sum(chunk.length for chunk in chunks),
                chunk_pairs=sum(chunk_pairs(chunk.start, chunk.length) for chunk in chunks),
            )
        sampled, sample_rows = sampled_by(decodes, chunks)
        self._in_flight = Schedule(
            number=self._step,
            token_budget=self.config.max_num_batched_tokens,
            decodes=decodes,
            chunks=chunks,
            chunk_rows=rows_of([chunk.request for chunk in chunks]),
            given=given,
            preempted=preempted,
            sampled=sampled,
            sample_rows=sample_rows,
            num_waiting=self.num_waiting,
            waiting_for=waiting_for,
            start=start,
            work=work,
            predicted_duration=self.cost.predict(work),
        )
        self._events.moment = None
        return self._in_flight

    def _begin_step(self, now: float | None) -> float:
        """The time of its start."""
        start = self._clock() if now is None else now
        if self._tokens_time is not None:
            self.cost.observe_pause(start - self._tokens_time)
        self._step += 1
        self.pool.set_step(self._step)
        self._events.step, self._events.moment = self._step, start
        return start

    def _schedule_decodes(self) -> tuple[RequestRows, list[Request]]:
        """A slot for every decode, oldest first; where blocks run out, the newest running requests make room.

        Also says which did.
        """
        preempted: list[Request] = []
        decodes = self._requests.decoding.snapshot()
        reserved = self.table.reserve_decodes(decodes.rows)
        while reserved < len(self._requests.decoding):
            preempted.append(self._newest_running())
            self._requests.preempt(preempted[-1])
            decodes = self._requests.decoding.snapshot()
            reserved = self.table.reserve_decodes(decodes.rows, reserved)
        return decodes, preempted

    def _newest_running(self) -> Request:
        queues = (self._requests.prefilling, self._requests.decoding)
        return max((queue.last for queue in queues if queue), key=lambda request: request.order)

    def _keep_to_itl_target(self, room: ChunkRoom, decodes: RequestRows, work: StepWork) -> None:
        """If there is one for this step; `work` is that of the decodes."""
        target = self.config.itl_target_ms
        if target == "auto":
            if self._somebody_reads(decodes.requests):
                room.keep_to(AUTO_ITL_TARGET_MS / 1e3, self.cost, work, yields=True)
        elif target is not None and decodes.requests:
            room.keep_to(target / 1e3, self.cost, work)

    def _somebody_reads(self, decodes: Sequence[Request]) -> bool:
        """Whether a stream was under way when the prompt arrived whose turn it is.

        Who came together has nothing to be held up in: for a batch that arrives at once only the whole counts.
        """
        queue = self._requests.prefilling or self._requests.waiting
        return bool(queue) and any(
            stream.first_token_time is not None and stream.first_token_time < queue.first.arrival_time
            for stream in decodes
        )

    def _schedule_chunks(self, room: ChunkRoom) -> tuple[list[Chunk], list[GivenTokens], str]:
        """Spends `room` on prompts. Also says what is given to them, and what the head of the waiting queue lacks."""
        lengths: dict[Request, int] = {}
        given: list[GivenTokens] = []
        for request in self._requests.prefilling:
            lengths[request] = self._spend_first_share(request, room)
        waiting_for = ""
        free_seats = self.config.max_num_seqs - self._requests.seats_taken
        while self._requests.waiting and not waiting_for:
            head = self._requests.waiting.first
            waiting_for = self._admit(head, room, free_seats, given)
            if not waiting_for:
                free_seats -= 1 + len(head.unforked_siblings)
                lengths[head] = self._spend_first_share(head, room)
        for request, length in lengths.items():
            start = self.table.num_computed(request.row) + length
            more = min(self._num_uncomputed(request) - length, room.tokens_at(start))
            room.spend(start, more)
            lengths[request] += more
        chunks = [self._reserve_chunk(request, length) for request, length in lengths.items() if length > 0]
        return [chunk for chunk in chunks if chunk.length > 0], given, waiting_for

    def _spend_first_share(self, request: Request, room: ChunkRoom) -> int:
        """What a prompt may take of what is left before the next ones had their turn."""
        start = self.table.num_computed(request.row)
        left = room.tokens_at(start)
        cap = self.config.long_prefill_token_threshold or max(left // 2, MIN_CHUNK)
        share = min(self._num_uncomputed(request), cap, left)
        room.spend(start, share)
        return share

    def _admit(self, head: Request, room: ChunkRoom, free_seats: int, given: list[GivenTokens]) -> str:
        """Moves the head of the waiting queue to the prefills, or says what it lacks.

        Its whole prefill must fit beside what other prefills were promised and a block for every decode: a request that
        takes a decode's next block would be preempted for it soon after.
        """
        if room.tokens == 0:
            return "budget"
        if room.tokens_at(0) == 0:
            return "itl target"
        seats = 1 + len(head.unforked_siblings)
        if seats > free_seats:
            return f"seats: needs {seats}, {free_seats} free"
        admission = self.table.admit(head.row, headroom=self.num_decoding)
        if not admission.admitted:
            return f"blocks: needs {admission.needed}, {admission.available} available"
        if admission.hit_tokens < head.virtual_tokens.num_given:
            given.append(self._give(head, admission.hit_tokens))
        self._requests.start_prefill(head, admission.hit_tokens)
        return ""

    def _give(self, request: Request, start: int) -> GivenTokens:
        """Takes blocks for the virtual tokens from `start` on whose KV is not computed but given."""
        stop, size = request.virtual_tokens.num_given, self.config.block_size
        self.table.give(request.row, stop)
        positions = np.arange(start, stop)
        blocks = np.array(self.table.block_table(request.row), np.int64)
        return GivenTokens(request, start, blocks[positions // size] * size + positions % size)

    def _reserve_chunk(self, request: Request, length: int) -> Chunk:
        """Takes blocks for the chunk; it is shorter, maybe empty, where decodes took what was promised to it."""
        start = self.table.num_computed(request.row)
        uncomputed = self._num_uncomputed(request)
        length = self.table.reserve(request.row, length)
        hit_tokens = request.admission_hit_tokens
        if length > 0:
            request.admission_hit_tokens = 0
        return Chunk(request, start, length, hit_tokens, is_last=length == uncomputed)

    def _num_uncomputed(self, request: Request) -> int:
        return self.table.num_tokens(request.row) - self.table.num_computed(request.row)

    def build(self, schedule: Schedule) -> BatchArrays:
        """The step's arrays, valid until the next call."""
        self._require_in_flight(schedule)
        arrays = self._builder.build(schedule.decodes.rows, schedule.chunk_rows)
        return BatchArrays(*arrays, num_decodes=len(schedule.decodes.requests))

    def commit(
        self,
        schedule: Schedule,
        sampled_token_ids: Sequence[int] | NDArray[np.integer],
        now: float | None = None,
        failed: Iterable[int] = (),
    ) -> None:
        """Takes the token of each of `schedule.sampled`, after the step's KV was written. `end_step` must follow.

        Raises ValueError when the number of tokens is wrong. Requests that ended in flight are passed over.

        now: when the tokens were known, by the clock if not given.
        failed: places in `schedule.sampled` that have no token; they end with "error", and with a request the siblings
            that still depend on it.
        """
        self._require_in_flight(schedule)
        if self._committed:
            raise RuntimeError(f"step {schedule.number} was committed already")
        tokens = np.asarray(sampled_token_ids, dtype=np.int64)
        if tokens.shape != (len(schedule.sampled),):
            raise ValueError(f"sampled_token_ids has shape {tokens.shape}, expected ({len(schedule.sampled)},)")
        now = self._clock() if now is None else now
        self._committed, self._events.moment = True, now
        self._requests.hold_back_ends()
        self.cost.observe(schedule.work, now - schedule.start)
        for place in failed:
            self.finish(schedule.sampled[place], "error")
        self.table.complete(np.concatenate((schedule.decodes.rows, schedule.chunk_rows)))
        for chunk in schedule.chunks:
            if not chunk.request.finished:
                self._complete_chunk(chunk, now)
        prefilled = schedule.sampled[len(schedule.decodes.requests) :]
        rows = np.concatenate((schedule.decodes.rows, rows_of(prefilled)))
        for end in self.table.append(rows, tokens):
            by_length = end.reason == _core.FinishReason.LENGTH
            stop_token = end.token if end.reason == _core.FinishReason.STOP_TOKEN else None
            self.finish(schedule.sampled[end.index], "length" if by_length else "stop", stop_token)

    def _complete_chunk(self, chunk: Chunk, now: float) -> None:
        request, start, length, hit_tokens, is_last = chunk
        self._events.tell(RequestEventKind.CHUNK, request, start=start, length=length, hit_tokens=hit_tokens)
        if is_last:
            self._requests.start_decoding(request, now)

    def end_step(self, schedule: Schedule) -> None:
        """After `commit`, and after all who may still end a request because of its token have done so."""
        self._require_in_flight(schedule)
        if not self._committed:
            raise RuntimeError(f"step {schedule.number} must be committed before it ends")
        schedule.finished = self._requests.tell_ends()
        self._tokens_time = self._events.moment if self.has_work() else None
        self._close_step(schedule)

    def discard(self, schedule: Schedule) -> list[Request]:
        """Ends a step that failed: its tokens do not count, and its requests end with "error". Returns these."""
        self._require_in_flight(schedule)
        self._events.moment = None
        schedule.finished = self._requests.tell_ends()
        members = [*schedule.decodes.requests, *(chunk.request for chunk in schedule.chunks)]
        members += [tokens.request for tokens in schedule.given]
        for request in members:
            if not request.finished:
                schedule.finished += [request, *request.unforked_siblings]
                self.finish(request, "error")
        self._close_step(schedule)
        return schedule.finished

    def _close_step(self, schedule: Schedule) -> None:
        self.table.end_step()
        before = self._block_totals
        self._block_totals = (self.pool.num_taken, self.pool.num_freed, self.pool.num_evicted)
        schedule.num_blocks_taken, schedule.num_blocks_freed, schedule.num_blocks_evicted = (
            now - then for now, then in zip(self._block_totals, before, strict=True)
        )
        if self._events.recording_tokens:
            schedule.evicted_hashes = self.pool.take_evictions()
        self._in_flight, self._committed, self._events.moment = None, False, None

    def _require_in_flight(self, schedule: Schedule) -> None:
        if schedule is not self._in_flight:
            raise RuntimeError(f"step {schedule.number} is not in flight")

    # --- What can be seen ---

    def record_blocks(self, wanted: bool) -> None:
        """Whether `take_block_changes` has anything to tell; what happened before is forgotten."""
        self.pool.record_changes(wanted)

    def take_block_changes(self) -> NDArray[np.int32]:
        """[C, 4]: block, its BlockState now, 1 if its prefix was evicted in between, and 1 if it holds virtual tokens.

        For each block that is not what it was at the last call, or that was evicted since. Nothing is missed,
        be it between two steps or without any; nothing is told unless it is recorded.
        """
        return self.pool.take_changes()

    def block_tables(self) -> dict[int, NDArray[np.int32]]:
        """Of each request that holds blocks, by its number: the physical ids of its logical blocks."""
        requests = [request for request in self._requests if request.row >= 0]
        tables = self.table.block_tables(rows_of(requests))
        return {request.number: table for request, table in zip(requests, tables, strict=True) if len(table)}

    def pool_totals(self) -> PoolTotals:
        """To be asked for between two steps."""
        pool = self.pool
        return PoolTotals(
            free=pool.num_free,
            cached=pool.num_cached,
            used=pool.num_used,
            taken=pool.num_taken,
            freed=pool.num_freed,
            evicted=pool.num_evicted,
            used_tokens=self.table.count_used_tokens(),
        )

    def record_prefixes(self, wanted: bool) -> None:
        """Whether events say what a request's tokens are (`RequestEvent.tokens`), and steps which prefixes gave way."""
        self._events.recording_tokens = wanted
        self.pool.record_evictions(wanted)

    def block_owners(self, block: int) -> list[str]:
        """Ids of the requests whose block tables name `block`; `table.describe` says the rest."""
        rows = set(self.table.describe(block).owners)
        return [request.request_id for request in self._requests if request.row in rows]

    def step_event(self, schedule: Schedule, start: float, duration: float) -> StepEvent:
        """The event of a step that has ended. It costs a little per request, so make one only for a listener."""
        return StepEvent.of(schedule, self.pool, start, duration)

    def reset_prefix_cache(self) -> None:
        """Forgets all cached prefixes; running requests keep their blocks, and do not publish them any more."""
        self.pool.reset_prefix_cache()

    def check(self) -> None:
        """Raises RuntimeError naming the first broken invariant of the pool, the table or the queues."""
        self.table.check()
        self._requests.check()
        seats = self._requests.seats_taken
        if seats > self.config.max_num_seqs:
            raise RuntimeError(f"{seats} seats are taken, max_num_seqs is {self.config.max_num_seqs}")
        num_requests = self.num_waiting + self.num_running
        if self._in_flight is None and self.table.num_rows != num_requests:
            raise RuntimeError(f"{self.table.num_rows} rows for {num_requests} requests")
