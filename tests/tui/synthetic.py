"""A pretended engine that tells believable telemetry: chunks, prefix hits, evictions, preemptions.

It keeps its own books, so that what a view makes of the telemetry can be compared with the truth.
"""

from __future__ import annotations

import copy
import random
from collections import OrderedDict
from dataclasses import dataclass, field

from cudaprefill.protocol.telemetry import (
    ACTIVE,
    CACHED,
    EVICTED,
    FREE,
    SHARED,
    EngineDescription,
    EngineSettings,
    PoolTotals,
    RequestChange,
    RequestEventKind,
    RequestRecord,
    StepRecord,
    TelemetrySnapshot,
    TelemetryUpdate,
)

START = 1000.0  # of the engine's clock


@dataclass
class SyntheticRequest:
    record: RequestRecord
    document: int  # requests of one document begin with the same tokens
    table: list[int] = field(default_factory=list)
    target: int = 0  # tokens of the prefill that is under way
    token_times: list[float] = field(default_factory=list)


class SyntheticEngine:
    """Steps on its own clock, by `step`; `snapshot` and `update` tell what happened since the message before."""

    def __init__(
        self,
        *,
        num_blocks: int = 256,
        budget: int = 128,
        cap: int = 48,
        max_num_seqs: int = 8,
        seed: int = 0,
        model: str = "smollm2-135m",
    ) -> None:
        self.random = random.Random(seed)
        self.description = EngineDescription(
            model=model,
            family="llama",
            num_parameters=134_515_008,
            dtype="float32",
            kv_cache_dtype="float32",
            device="cpu",
            kernels="avx512",
            threads=2,
            max_model_len=8192,
            block_size=16,
            num_blocks=num_blocks,
            block_bytes=368_640,
            max_num_seqs=max_num_seqs,
            enable_prefix_caching=True,
            version="0.1.0",
        )
        self.settings = EngineSettings(max_num_batched_tokens=budget, long_prefill_token_threshold=cap)
        self.time = START
        self.number = 0
        self.requests: dict[int, SyntheticRequest] = {}  # alive
        self.finished: dict[int, SyntheticRequest] = {}
        self.free = list(range(num_blocks))
        self.cached: OrderedDict[int, tuple[int, int]] = OrderedDict()  # block -> document, place
        self.index: dict[tuple[int, int], int] = {}
        self.uses: dict[int, int] = {}
        self.taken = self.freed = self.evicted = 0
        self._next_request = 1
        self._sequence = 0
        self._steps: list[StepRecord] = []
        self._changes: list[RequestChange] = []
        self._evictions: set[int] = set()
        self._sent_blocks = ""
        self._sent_tables: dict[int, list[int]] = {}
        self._sent_decodes: set[int] = set()
        self._sent_settings = self.settings

    # --- Clients ---

    def submit(self, prompt_tokens: int, max_tokens: int = 16, *, document: int = -1, id: str | None = None) -> int:
        """A request whose document is -1 shares its beginning with no other."""
        number = self._next_request
        self._next_request += 1
        record = RequestRecord(
            number=number,
            id=id or f"resp_{self.random.getrandbits(128):032x}",
            state="waiting",
            priority=0,
            arrived=self.time,
            prompt_tokens=prompt_tokens,
            max_tokens=max_tokens,
        )
        request = SyntheticRequest(record, document if document >= 0 else -number, target=prompt_tokens)
        self.requests[number] = request
        self._tell(
            "arrived",
            request,
            id=record.id,
            priority=0,
            prompt_tokens=prompt_tokens,
            max_tokens=max_tokens,
        )
        self._tell("queued", request)
        return number

    def abort(self, number: int) -> None:
        self._finish(self.requests[number], "abort")

    # --- The engine ---

    def step(self) -> None:
        if not self.requests:
            self.time += 0.01
            return
        self.number += 1
        before = (self.taken, self.freed, self.evicted)
        preempted: list[int] = []
        decodes = self._schedule_decodes(preempted)
        left = self.settings.max_num_batched_tokens - len(decodes)
        chunks: list[tuple[int, int, int, int]] = []
        waiting_for = self._schedule_chunks(left, chunks)
        start = self.time
        tokens = len(decodes) + sum(chunk[2] for chunk in chunks)
        self.time += 0.004 + tokens * 0.0002 * self.random.uniform(0.9, 1.1)
        self._commit(decodes, chunks)
        self._steps.append(
            StepRecord(
                number=self.number,
                start=start,
                duration=self.time - start,
                token_budget=self.settings.max_num_batched_tokens,
                num_decodes=len(decodes),
                joined=sorted(set(decodes) - self._sent_decodes),
                left=sorted(self._sent_decodes - set(decodes)),
                chunks=chunks,
                preempted=preempted,
                num_waiting=sum(r.record.state == "waiting" for r in self.requests.values()),
                waiting_for=waiting_for,
                blocks_taken=self.taken - before[0],
                blocks_freed=self.freed - before[1],
                blocks_evicted=self.evicted - before[2],
            )
        )
        self._sent_decodes = set(decodes)

    def _schedule_decodes(self, preempted: list[int]) -> list[int]:
        for request in list(self.requests.values()):
            while request.record.state == "decoding" and not self._reserve(request, self._length(request)):
                running = [r for r in self.requests.values() if r.record.state in ("prefilling", "decoding")]
                preempted.append(running[-1].record.number)
                self._preempt(running[-1])
        return [number for number, request in self.requests.items() if request.record.state == "decoding"]

    def _schedule_chunks(self, left: int, chunks: list[tuple[int, int, int, int]]) -> str:
        waiting_for = ""
        seats = self.description.max_num_seqs - sum(r.record.state != "waiting" for r in self.requests.values())
        for number, request in self.requests.items():
            record, hits = request.record, 0
            if record.state == "waiting" and not waiting_for:
                waiting_for = self._why_not(request, left, seats)
                if not waiting_for:
                    hits = self._admit(request)
                    seats -= 1
            if record.state == "prefilling" and left > 0:
                cap = self.settings.long_prefill_token_threshold or max(left // 2, 64)
                length = min(left, cap, request.target - record.computed_tokens)
                if self._reserve(request, record.computed_tokens + length):
                    chunks.append((number, record.computed_tokens, length, hits))
                    left -= length
        return waiting_for

    def _why_not(self, request: SyntheticRequest, left: int, seats: int) -> str:
        if left <= 0:
            return "budget"
        if seats <= 0:
            return "seats: needs 1, 0 free"
        needed = -(-request.target // self.description.block_size)
        promised = sum(
            -(-other.target // self.description.block_size) - len(other.table)
            for other in self.requests.values()
            if other.record.state == "prefilling"
        )
        available = len(self.free) + len(self.cached) - promised
        return f"blocks: needs {needed}, {available} available" if needed > available else ""

    def _admit(self, request: SyntheticRequest) -> int:
        size = self.description.block_size
        for place in range((request.target - 1) // size):
            block = self.index.get((request.document, place))
            if block is None:
                break
            self.cached.pop(block, None)
            self.uses[block] = self.uses.get(block, 0) + 1
            request.table.append(block)
        record = request.record
        record.state = "prefilling"
        record.computed_tokens = len(request.table) * size
        if record.first_scheduled is None:
            record.first_scheduled = self.time
            record.hit_tokens = record.computed_tokens
        self._tell("scheduled", request, hit_tokens=record.computed_tokens)
        return record.computed_tokens

    def _commit(self, decodes: list[int], chunks: list[tuple[int, int, int, int]]) -> None:
        for number in decodes:
            self._token(self.requests[number])
        for number, start, length, hits in chunks:
            request = self.requests[number]
            record = request.record
            record.computed_tokens = start + length
            record.num_chunks += 1
            self._publish(request)
            self._tell("chunk", request, start=start, length=length, hit_tokens=hits)
            if record.computed_tokens == request.target:
                record.state = "decoding"
                if record.first_token is None:
                    record.first_token = self.time
                    self._tell("first_token", request)
                self._token(request)

    def _token(self, request: SyntheticRequest) -> None:
        record = request.record
        request.token_times.append(self.time)
        record.output_tokens += 1
        record.last_token = self.time
        if record.output_tokens == record.max_tokens:
            self._finish(request, "length")

    def _finish(self, request: SyntheticRequest, reason: str) -> None:
        record = request.record
        record.state, record.finished, record.finish_reason = "finished", self.time, reason
        self._release(request)
        self.finished[record.number] = self.requests.pop(record.number)
        self._tell("finished", request, reason=reason, output_tokens=record.output_tokens)

    def _preempt(self, request: SyntheticRequest) -> None:
        self._release(request)
        record = request.record
        record.state = "waiting"
        record.computed_tokens = 0
        record.preemptions += 1
        request.target = record.prompt_tokens + record.output_tokens
        self._tell("preempted", request)

    def _length(self, request: SyntheticRequest) -> int:
        return request.record.prompt_tokens + request.record.output_tokens

    # --- Blocks ---

    def _reserve(self, request: SyntheticRequest, num_tokens: int) -> bool:
        missing = -(-num_tokens // self.description.block_size) - len(request.table)
        if missing > len(self.free) + len(self.cached):
            return False
        for _ in range(missing):
            if self.free:
                block = self.free.pop(0)
            else:
                block, key = self.cached.popitem(last=False)
                del self.index[key]
                self.evicted += 1
                self._evictions.add(block)
            self.uses[block] = 1
            request.table.append(block)
            self.taken += 1
        return True

    def _publish(self, request: SyntheticRequest) -> None:
        full = request.record.computed_tokens // self.description.block_size
        for place, block in enumerate(request.table[:full]):
            self.index.setdefault((request.document, place), block)

    def _release(self, request: SyntheticRequest) -> None:
        for place, block in reversed(list(enumerate(request.table))):
            self.uses[block] -= 1
            if self.uses[block] == 0:
                del self.uses[block]
                self.freed += 1
                if self.index.get((request.document, place)) == block:
                    self.cached[block] = (request.document, place)
                else:
                    self.free.append(block)
        request.table.clear()

    def blocks(self) -> str:
        states = [FREE] * self.description.num_blocks
        for block in self.cached:
            states[block] = CACHED
        for block, uses in self.uses.items():
            states[block] = SHARED if uses > 1 else ACTIVE
        return "".join(states)

    def pool(self) -> PoolTotals:
        tokens = sum(
            min(self._length(r), len(r.table) * self.description.block_size) for r in self.requests.values() if r.table
        )
        shared = sum((uses - 1) * self.description.block_size for uses in self.uses.values())
        return PoolTotals(
            free=len(self.free),
            cached=len(self.cached),
            used=len(self.uses),
            taken=self.taken,
            freed=self.freed,
            evicted=self.evicted,
            used_tokens=max(0, tokens - shared),
        )

    # --- Telemetry ---

    def snapshot(self, reason: str = "subscribed", *, owners: bool = True) -> TelemetrySnapshot:
        self._forget_unsent()
        tables = {str(number): list(request.table) for number, request in self.requests.items() if request.table}
        return TelemetrySnapshot(
            sequence_number=self._count(),
            reason=reason,  # type: ignore[arg-type]
            time=self.time,
            unix_time=self.time + 1.7e9,
            engine=self.description,
            settings=self.settings,
            step=self.number,
            pool=self.pool(),
            requests=[copy.copy(request.record) for request in self.requests.values()],
            blocks=self._sent_blocks,
            owners=tables if owners else None,
        )

    def update(self, *, owners: bool = True) -> TelemetryUpdate:
        blocks, before = self.blocks(), self._sent_blocks
        changed = [
            (block, (EVICTED if block in self._evictions else "") + state)
            for block, state in enumerate(blocks)
            if state != before[block] or block in self._evictions
        ]
        tables = {}
        alive = {number: request.table for number, request in self.requests.items()}
        for number in alive.keys() | self._sent_tables.keys():
            now, then = alive.get(number, []), self._sent_tables.get(number, [])
            if now != then:
                place = next((i for i, (a, b) in enumerate(zip(now, then, strict=False)) if a != b), None)
                place = min(len(now), len(then)) if place is None else place
                tables[str(number)] = (place, now[place:])
        update = TelemetryUpdate(
            sequence_number=self._count(),
            time=self.time,
            steps=self._steps or None,
            requests=self._changes or None,
            blocks=changed or None,
            owners=tables if owners and tables else None,
            pool=self.pool(),
            settings=self.settings if self.settings != self._sent_settings else None,
        )
        decodes = self._sent_decodes
        self._forget_unsent()
        self._sent_decodes = decodes
        return update

    def _forget_unsent(self) -> None:
        self._steps, self._changes, self._evictions = [], [], set()
        self._sent_blocks = self.blocks()
        self._sent_tables = {number: list(request.table) for number, request in self.requests.items()}
        self._sent_decodes = set()
        self._sent_settings = self.settings

    def _count(self) -> int:
        self._sequence += 1
        return self._sequence - 1

    def _tell(self, kind: RequestEventKind, request: SyntheticRequest, **fields: object) -> None:
        self._changes.append(
            RequestChange(
                kind=kind,
                number=request.record.number,
                time=self.time,
                step=self.number,
                **fields,  # type: ignore[arg-type]
            )
        )
