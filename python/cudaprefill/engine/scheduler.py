"""Who computes what in the next step. The whole policy is here; docs/scheduling.md explains it."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from cudaprefill import _core
from cudaprefill.config import check_count, check_itl_target
from cudaprefill.engine.chunk_room import ChunkRoom
from cudaprefill.engine.request import FinishReason, Request, RequestState
from cudaprefill.engine.request_queue import RequestQueue, RequestRows
from cudaprefill.engine.schedule import BatchArrays, Chunk, GivenTokens, Schedule
from cudaprefill.engine.scheduler_config import SchedulerConfig
from cudaprefill.engine.step_cost import StepCost, StepWork, chunk_pairs
from cudaprefill.errors import QueueFullError
from cudaprefill.observe.events import RequestEvent, RequestEventKind, RequestTokens, StepEvent
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
        self.on_event = on_event
        self._clock = clock
        self._requests: dict[str, Request] = {}
        self._waiting = RequestQueue()
        self._prefilling = RequestQueue()
        self._decoding = RequestQueue()
        self._queues = {
            RequestState.WAITING: self._waiting,
            RequestState.PREFILLING: self._prefilling,
            RequestState.DECODING: self._decoding,
        }
        self._arrivals = itertools.count(1)
        self._step = 0
        self._in_flight: Schedule | None = None
        self._ended_in_step: dict[Request, RequestTokens | None] | None = None  # from commit to end_step
        self._event_time: float | None = None  # of what a step does; None: now
        self._tokens_time: float | None = None  # of the last step, if there was more to do after it
        self._block_totals = (0, 0, 0)
        self._recording_prefixes = False

    # --- Requests come and go ---

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_decoding(self) -> int:
        return len(self._decoding)

    @property
    def num_running(self) -> int:
        return len(self._prefilling) + len(self._decoding)

    @property
    def num_steps(self) -> int:
        """The number of the last step."""
        return self._step

    def has_work(self) -> bool:
        return bool(self._requests)

    def add(self, request: Request) -> None:
        """Queues a request together with its siblings.

        Raises ValueError, with both numbers, for what can never run, and QueueFullError when too many wait.
        """
        self.config.refuse_impossible(
            len(request.prompt_token_ids), 1 + len(request.siblings), request.virtual_tokens.num_tokens
        )
        self._refuse_id_in_use(request)
        limit = self.config.max_num_queued_reqs
        free_seats = self.config.max_num_seqs - self._seats_taken()
        if limit is not None and len(self._waiting) >= limit + free_seats:
            beside = f" and {free_seats} seats are free" if free_seats else ""
            raise QueueFullError(f"{len(self._waiting)} requests are waiting, max_num_queued_reqs is {limit}{beside}")
        if request.adapter is not None:
            request.adapter.begin_uses(1 + len(request.siblings))
        for member in (request, *request.siblings):
            member.order = (request.priority, request.arrival_time, next(self._arrivals))
            self._requests[member.request_id] = member
        params = request.sampling_params
        num_prompt_tokens = request.prompt_length
        # A request that is alone in the pool can compute num_slots tokens; the one sampled last is never computed.
        max_length = min(self.config.max_model_len, self.config.num_slots + 1)
        if params.max_tokens is not None:
            max_length = min(max_length, num_prompt_tokens + params.max_tokens)
        row = self.table.add(
            request.prompt_positions,
            max_length=max_length,
            min_length=min(num_prompt_tokens + params.min_tokens, max_length + 1),
            eos_token_ids=() if params.ignore_eos else request.eos_token_ids,
            stop_token_ids=params.stop_token_ids or (),
            extra_keys=request.extra_keys,
        )
        request.take_row(self.table, row)
        self._waiting.add(request)
        for member in (request, *request.siblings):
            self._tell(
                RequestEventKind.ARRIVED,
                member,
                time=request.arrival_time,
                priority=request.priority,
                num_prompt_tokens=num_prompt_tokens,
                num_virtual_tokens=request.virtual_tokens.num_tokens,
                adapter=None if request.adapter is None else request.adapter.name,
                max_tokens=params.max_tokens,
                tokens=self._tokens_of(member),
            )
            self._tell(RequestEventKind.QUEUED, member, tokenized=member.tokenized_time)

    def abort(self, request_id: str) -> None:
        """Ends a request at any moment, with the siblings that still depend on it; unknown ids are ignored."""
        request = self._requests.get(request_id)
        if request is not None:
            self.finish(request, "abort")

    def finish(self, request: Request, reason: FinishReason, stop_reason: int | str | None = None) -> None:
        """Ends a request at any moment. Its tokens of the step in flight are dropped.

        Does nothing if it has ended; but until the end of the step whose token ended it, the reason can still be
        mended: the last token allowed may complete a stop string.
        """
        if self._requests.get(request.request_id) is not request:
            if self._ended_in_step is not None and request in self._ended_in_step:
                request.finish_reason, request.stop_reason = reason, stop_reason
            return
        for sibling in request.unforked_siblings:
            self.finish(sibling, reason, stop_reason)
        queue = self._queues[request.state]
        if request in queue:  # an unforked sibling is in none
            queue.remove(request)
        tokens = self._tokens_of(request)
        request.leave_row()
        request.state = RequestState.FINISHED
        request.finish_reason = reason
        request.stop_reason = stop_reason
        del self._requests[request.request_id]
        if request.adapter is not None:
            request.adapter.end_use()
        if self._ended_in_step is None:
            self._tell_finished(request, tokens)
        else:
            self._ended_in_step[request] = tokens

    def finish_all(self, reason: FinishReason) -> None:
        for request in list(self._requests.values()):
            self.finish(request, reason)

    def _refuse_id_in_use(self, request: Request) -> None:
        ids = [member.request_id for member in (request, *request.siblings)]
        for index, request_id in enumerate(ids):
            if request_id in self._requests or request_id in ids[:index]:
                raise ValueError(f"request id {request_id!r} is in use")

    # --- What can be changed between two steps ---

    @property
    def settings(self) -> EngineSettings:
        config = self.config
        return EngineSettings(
            max_num_batched_tokens=config.max_num_batched_tokens,
            long_prefill_token_threshold=config.long_prefill_token_threshold,
            itl_target_ms=config.itl_target_ms,
        )

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
        changes: dict[str, Any] = {}
        for name, count in (
            ("max_num_batched_tokens", max_num_batched_tokens),
            ("long_prefill_token_threshold", long_prefill_token_threshold),
        ):
            if count is not None:
                check_count(name, count)
                changes[name] = count
        if itl_target_ms is not None:
            changes["itl_target_ms"] = check_itl_target(itl_target_ms)
        before, self.config = self.config, replace(self.config, **changes)
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
        self._step += 1
        self._event_time = self._clock() if now is None else now
        if self._tokens_time is not None:
            self.cost.observe_pause(self._event_time - self._tokens_time)
        self.pool.set_step(self._step)
        preempted: list[Request] = []
        decodes = self._schedule_decodes(preempted)
        work = StepWork(decodes=len(decodes.requests), decode_context=self.table.total_tokens(decodes.rows))
        room = ChunkRoom(self.config.max_num_batched_tokens - len(decodes.requests))
        self._limit_chunks(room, decodes, work)
        given: list[GivenTokens] = []
        chunks, waiting_for = self._schedule_chunks(room, given)
        if not decodes.requests and not chunks:
            raise RuntimeError(f"step {self._step} makes no progress: {waiting_for}")
        if chunks:
            work = work._replace(
                chunk_tokens=sum(chunk.length for chunk in chunks),
                chunk_pairs=sum(chunk_pairs(chunk.start, chunk.length) for chunk in chunks),
            )
        ends = [(chunk.request, *chunk.request.unforked_siblings) for chunk in chunks if chunk.is_last]
        num_decodes = len(decodes.requests)
        end_rows = num_decodes + np.arange(len(ends))
        tokens_per_end = np.array([len(members) for members in ends], dtype=np.int64)
        self._in_flight = Schedule(
            number=self._step,
            token_budget=self.config.max_num_batched_tokens,
            decodes=decodes,
            chunks=chunks,
            chunk_rows=_rows_of([chunk.request for chunk in chunks]),
            given=given,
            preempted=preempted,
            sampled=(*decodes.requests, *itertools.chain.from_iterable(ends)),
            sample_rows=np.concatenate((np.arange(num_decodes), np.repeat(end_rows, tokens_per_end))),
            num_waiting=len(self._waiting),
            waiting_for=waiting_for,
            start=self._event_time,
            work=work,
            predicted_duration=self.cost.predict(work),
        )
        self._event_time = None
        return self._in_flight

    def _schedule_decodes(self, preempted: list[Request]) -> RequestRows:
        """A slot for every decode, oldest first; where blocks run out, the newest running requests make room."""
        decodes = self._decoding.snapshot()
        reserved = self.table.reserve_decodes(decodes.rows)
        while reserved < len(self._decoding):
            preempted.append(self._preempt_newest())
            decodes = self._decoding.snapshot()
            reserved = self.table.reserve_decodes(decodes.rows, reserved)
        return decodes

    def _limit_chunks(self, room: ChunkRoom, decodes: RequestRows, work: StepWork) -> None:
        """To the ITL target, if there is one for this step; `work` is that of the decodes."""
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
        queue = self._prefilling or self._waiting
        return bool(queue) and any(
            stream.first_token_time is not None and stream.first_token_time < queue.first.arrival_time
            for stream in decodes
        )

    def _preempt_newest(self) -> Request:
        """Takes a request's blocks away and queues it again, where its arrival puts it: it starts anew later."""
        queues = [queue for queue in (self._prefilling, self._decoding) if len(queue)]
        queue = max(queues, key=lambda queue: queue.last.order)
        request = queue.last
        queue.remove(request)
        self.table.preempt(request.row)
        request.state = RequestState.WAITING
        self._waiting.add(request)
        for member in (request, *request.unforked_siblings):
            member.num_preemptions += 1
            self._tell(RequestEventKind.PREEMPTED, member)
        return request

    def _schedule_chunks(self, room: ChunkRoom, given: list[GivenTokens]) -> tuple[list[Chunk], str]:
        """Spends `room` on prompts, and adds to `given`. Also says what the head of the waiting queue lacks."""
        lengths: dict[Request, int] = {}
        for request in self._prefilling:
            lengths[request] = self._spend_first_share(request, room)
        waiting_for = ""
        seats_taken = self._seats_taken()
        while self._waiting and not waiting_for:
            head = self._waiting.first
            seats = 1 + len(head.unforked_siblings)
            if room.tokens == 0:
                waiting_for = "budget"
            elif room.tokens_at(0) == 0:
                waiting_for = "itl target"
            elif seats_taken + seats > self.config.max_num_seqs:
                waiting_for = f"seats: needs {seats}, {self.config.max_num_seqs - seats_taken} free"
            else:
                waiting_for = self._admit(head, given)
            if not waiting_for:
                seats_taken += seats
                lengths[head] = self._spend_first_share(head, room)
        for request, length in lengths.items():
            start = self.table.num_computed(request.row) + length
            more = min(self._num_uncomputed(request) - length, room.tokens_at(start))
            room.spend(start, more)
            lengths[request] += more
        chunks = [self._reserve_chunk(request, length) for request, length in lengths.items() if length > 0]
        return [chunk for chunk in chunks if chunk.length > 0], waiting_for

    def _spend_first_share(self, request: Request, room: ChunkRoom) -> int:
        """What a prompt may take of what is left before the next ones had their turn."""
        start = self.table.num_computed(request.row)
        left = room.tokens_at(start)
        cap = self.config.long_prefill_token_threshold or max(left // 2, MIN_CHUNK)
        share = min(self._num_uncomputed(request), cap, left)
        room.spend(start, share)
        return share

    def _admit(self, request: Request, given: list[GivenTokens]) -> str:
        """Moves the head of the waiting queue to the prefills, or says which blocks it lacks.

        Its whole prefill must fit beside what other prefills were promised and a block for every decode: a request that
        takes a decode's next block would be preempted for it soon after.
        """
        admission = self.table.admit(request.row, headroom=len(self._decoding))
        if not admission.admitted:
            return f"blocks: needs {admission.needed}, {admission.available} available"
        self._waiting.remove(request)
        self._prefilling.add(request)
        if admission.hit_tokens < request.virtual_tokens.num_given:
            given.append(self._give(request, admission.hit_tokens))
        request.state = RequestState.PREFILLING
        request.admission_hit_tokens = admission.hit_tokens
        for member in (request, *request.unforked_siblings):
            if request.num_preemptions == 0:
                member.num_hit_tokens = admission.hit_tokens
            self._tell(RequestEventKind.SCHEDULED, member, hit_tokens=admission.hit_tokens)
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

    def _seats_taken(self) -> int:
        return len(self._decoding) + sum(1 + len(request.unforked_siblings) for request in self._prefilling)

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
        if self._ended_in_step is not None:
            raise RuntimeError(f"step {schedule.number} was committed already")
        tokens = np.asarray(sampled_token_ids, dtype=np.int64)
        if tokens.shape != (len(schedule.sampled),):
            raise ValueError(f"sampled_token_ids has shape {tokens.shape}, expected ({len(schedule.sampled)},)")
        self._event_time = self._clock() if now is None else now
        self.cost.observe(schedule.work, self._event_time - schedule.start)
        self._ended_in_step = {}
        for place in failed:
            self.finish(schedule.sampled[place], "error")
        self.table.complete(np.concatenate((schedule.decodes.rows, schedule.chunk_rows)))
        for chunk in schedule.chunks:
            if not chunk.request.finished:
                self._complete_chunk(chunk)
        prefilled = schedule.sampled[len(schedule.decodes.requests) :]
        rows = np.concatenate((schedule.decodes.rows, _rows_of(prefilled)))
        for end in self.table.append(rows, tokens):
            request = schedule.sampled[end.index]
            by_length = end.reason == _core.FinishReason.LENGTH
            stop_token = end.token if end.reason == _core.FinishReason.STOP_TOKEN else None
            self.finish(request, "length" if by_length else "stop", stop_token)

    def end_step(self, schedule: Schedule) -> None:
        """After `commit`, and after all who may still end a request because of its token have done so."""
        self._require_in_flight(schedule)
        if self._ended_in_step is None:
            raise RuntimeError(f"step {schedule.number} must be committed before it ends")
        schedule.finished = list(self._ended_in_step)
        for request, tokens in self._ended_in_step.items():
            self._tell_finished(request, tokens)
        self._tokens_time = self._event_time if self.has_work() else None
        self._close_step(schedule)

    def _complete_chunk(self, chunk: Chunk) -> None:
        """Where the prefill ends, the request and its siblings go on as decodes that share all blocks so far."""
        lead = chunk.request
        self._tell(RequestEventKind.CHUNK, lead, start=chunk.start, length=chunk.length, hit_tokens=chunk.hit_tokens)
        if not chunk.is_last:
            return
        self._prefilling.remove(lead)
        siblings = lead.unforked_siblings
        lead.forked = True
        for sibling in siblings:
            sibling.take_row(self.table, self.table.fork(lead.row))
        for member in (lead, *siblings):
            member.state = RequestState.DECODING
            self._decoding.add(member)
            if member.first_token_time is None:
                member.first_token_time = self._event_time
                self._tell(RequestEventKind.FIRST_TOKEN, member)

    def discard(self, schedule: Schedule) -> list[Request]:
        """Ends a step that failed: its tokens do not count, and its requests end with "error". Returns these."""
        self._require_in_flight(schedule)
        self._event_time = None
        for request, tokens in (self._ended_in_step or {}).items():
            schedule.finished.append(request)
            self._tell_finished(request, tokens)
        self._ended_in_step = None
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
        if self._recording_prefixes:
            schedule.evicted_hashes = self.pool.take_evictions()
        self._in_flight = self._ended_in_step = self._event_time = None

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
        requests = [request for request in self._requests.values() if request.row >= 0]
        tables = self.table.block_tables(_rows_of(requests))
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
        self._recording_prefixes = wanted
        self.pool.record_evictions(wanted)

    def block_owners(self, block: int) -> list[str]:
        """Ids of the requests whose block tables name `block`; `table.describe` says the rest."""
        rows = set(self.table.describe(block).owners)
        return [request.request_id for request in self._requests.values() if request.row in rows]

    def step_event(self, schedule: Schedule, start: float, duration: float) -> StepEvent:
        """The event of a step that has ended. It costs a little per request, so make one only for a listener."""
        return StepEvent.of(schedule, self.pool, start, duration)

    def reset_prefix_cache(self) -> None:
        """Forgets all cached prefixes; running requests keep their blocks, and do not publish them any more."""
        self.pool.reset_prefix_cache()

    def check(self) -> None:
        """Raises RuntimeError naming the first broken invariant of the pool, the table or the queues."""
        self.table.check()
        queued = 0
        for state, queue in self._queues.items():
            for request in queue:
                queued += 1 + len(request.unforked_siblings)
                if request.state is not state or self._requests.get(request.request_id) is not request:
                    raise RuntimeError(
                        f"request {request.request_id!r} is {request.state.value} in the {state.value} queue"
                    )
        if queued != len(self._requests):
            raise RuntimeError(f"{queued} requests are queued or run, {len(self._requests)} are known")
        if self._seats_taken() > self.config.max_num_seqs:
            raise RuntimeError(f"{self._seats_taken()} seats are taken, max_num_seqs is {self.config.max_num_seqs}")
        if self._in_flight is None and self.table.num_rows != len(self._waiting) + self.num_running:
            raise RuntimeError(f"{self.table.num_rows} rows for {len(self._waiting) + self.num_running} requests")

    def _tokens_of(self, request: Request) -> RequestTokens | None:
        """If they are recorded, and for a request with a row: a sibling gets its own in the fork."""
        if not self._recording_prefixes or request.row < 0:
            return None
        hashes = self.table.block_hashes(request.row)
        return RequestTokens(request.prompt_positions, request.output_token_ids, hashes)

    def _tell(
        self,
        kind: RequestEventKind,
        request: Request,
        *,
        time: float | None = None,
        **fields: Any,
    ) -> None:
        """`fields`: those of RequestEvent that the kind names."""
        if self.on_event is None:
            return
        if time is None:
            time = self._clock() if self._event_time is None else self._event_time
        self.on_event(RequestEvent(kind, request.request_id, time, self._step, number=request.number, **fields))

    def _tell_finished(self, request: Request, tokens: RequestTokens | None) -> None:
        self._tell(
            RequestEventKind.FINISHED,
            request,
            reason=request.finish_reason,
            num_output_tokens=request.num_output_tokens,
            tokens=tokens,
        )


def _rows_of(requests: Sequence[Request]) -> NDArray[np.int32]:
    return np.array([request.row for request in requests], dtype=np.int32)
