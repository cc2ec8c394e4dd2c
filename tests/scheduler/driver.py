"""Runs the scheduler with the fake model, checks every invariant after every step, and knows the right outputs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cudaprefill._core import BlockState
from cudaprefill.adapters.virtual_tokens import NO_VIRTUAL_TOKENS, VirtualTokens
from cudaprefill.engine.request import Request
from cudaprefill.engine.schedule import BatchArrays, Schedule
from cudaprefill.engine.scheduler import Scheduler
from cudaprefill.engine.scheduler_config import SchedulerConfig
from cudaprefill.observe.events import RequestEvent
from cudaprefill.sampling_params import SamplingParams
from tests.fake_model import TABLE_POISON, FakeModel, continuation, pick_token

if TYPE_CHECKING:
    from cudaprefill.adapters import Adapter

BLOCK_SIZE = 16
EOS = 1


@dataclass(frozen=True)
class Virtual:
    """Virtual tokens, and what the fake model's KV of them is. Other `content` is other KV, where it is given."""

    given: int = 0
    embedded: int = 0
    content: int = 0

    @property
    def kv(self) -> list[int]:
        given = [-1000 * (self.content + 1) - position for position in range(self.given)]
        return given + [-1 - position for position in range(self.given, self.given + self.embedded)]

    def tokens(self) -> VirtualTokens:
        """Without what the scheduler does not look at."""
        keys_values = np.empty((0, 2, self.given, 0, 0)) if self.given else None
        return VirtualTokens(keys_values, np.empty((self.embedded, 0)) if self.embedded else None)  # type: ignore[arg-type]


def named_adapter(name: str) -> Adapter:
    from cudaprefill.adapters import Adapter  # it needs torch, which the scheduler does not

    return Adapter(name, Path(), "test", b"")


class Driver:
    def __init__(
        self,
        *,
        num_blocks: int = 64,
        max_model_len: int = 1024,
        max_num_batched_tokens: int = 256,
        max_num_seqs: int = 16,
        block_size: int = BLOCK_SIZE,
        constant_hash: bool = False,
        vocab_size: int = 50,
        **config: Any,
    ) -> None:
        self.config = SchedulerConfig(
            num_blocks=num_blocks,
            max_model_len=max_model_len,
            max_num_batched_tokens=max_num_batched_tokens,
            max_num_seqs=max_num_seqs,
            block_size=block_size,
            **config,
        )
        self.events: list[RequestEvent] = []
        self.clock = 0.0
        self.scheduler = Scheduler(
            self.config, on_event=self.events.append, clock=lambda: self.clock, constant_hash=constant_hash
        )
        self.model = FakeModel(num_blocks, block_size, vocab_size)
        self.requests: dict[str, Request] = {}
        self.tokens: dict[str, list[int]] = {}  # as they came out, step by step
        self.schedules: list[Schedule] = []
        self.batches: list[BatchArrays] = []  # copies
        self._salts: dict[str, int] = {}
        self._virtual: dict[str, Virtual | None] = {}

    @property
    def pool(self) -> Any:
        return self.scheduler.pool

    def request(
        self,
        prompt: list[int],
        *,
        request_id: str | None = None,
        salt: int = 0,
        arrival_time: float = 0.0,
        priority: int = 0,
        extra_keys: tuple[tuple[str, bytes], ...] = (),
        virtual: Virtual | None = None,
        adapter: str | None = None,
        **params: Any,
    ) -> Request:
        """Not yet submitted. `salt` chooses the stream of tokens; siblings take the next ones."""
        if virtual is not None:
            extra_keys += (("adapter", repr(virtual).encode()),)
        name = request_id or f"request-{len(self.requests)}"
        sampling_params = SamplingParams(**params)
        members = [
            Request(
                request_id=name if index == 0 else f"{name}-{index}",
                prompt_token_ids=prompt,
                sampling_params=sampling_params,
                eos_token_ids=(EOS,),
                arrival_time=arrival_time,
                priority=priority,
                extra_keys=extra_keys,
                adapter=None if adapter is None else named_adapter(adapter),
                virtual_tokens=NO_VIRTUAL_TOKENS if virtual is None else virtual.tokens(),
            )
            for index in range(sampling_params.n)
        ]
        members[0].siblings = members[1:]
        for index, member in enumerate(members):
            self._salts[member.request_id] = salt + index
            self._virtual[member.request_id] = virtual
        return members[0]

    def submit(self, prompt: list[int], **options: Any) -> Request:
        return self.add(self.request(prompt, **options))

    def add(self, request: Request) -> Request:
        self.scheduler.add(request)
        for member in (request, *request.siblings):
            self.requests[member.request_id] = member
            self.tokens[member.request_id] = []
        return request

    def step(self) -> Schedule | None:
        """One whole step, and all checks."""
        schedule = self.scheduler.schedule()
        if schedule is not None:
            self.finish_step(schedule)
        return schedule

    def finish_step(self, schedule: Schedule) -> None:
        batch = self.scheduler.build(schedule)
        assert batch.num_decodes == len(schedule.decodes.requests)
        assert len(batch.token_ids) == schedule.num_tokens <= self.config.max_num_batched_tokens
        self.assert_only_own_blocks_are_written(batch)
        self.schedules.append(schedule)
        self.batches.append(BatchArrays(*(array.copy() for array in batch[:-1]), num_decodes=batch.num_decodes))
        for request, start, slots in schedule.given:
            virtual = self._virtual[request.request_id]
            assert virtual is not None
            assert (self.pool.states()[slots // self.config.block_size] == BlockState.ACTIVE).all()
            self.model.cache.reshape(-1)[slots] = virtual.kv[start : virtual.given]
        hidden = self.model.forward(batch)[batch.logits_rows][schedule.sample_rows]
        batch.block_table[...] = TABLE_POISON
        tokens = [
            pick_token(row, self._salts[request.request_id], self.model.vocab_size)
            for row, request in zip(hidden, schedule.sampled, strict=True)
        ]
        for request, token in zip(schedule.sampled, tokens, strict=True):
            if not request.finished:
                self.tokens[request.request_id].append(token)
        self.scheduler.check()
        self.scheduler.commit(schedule, tokens)
        self.scheduler.end_step(schedule)
        self.check()

    def assert_only_own_blocks_are_written(self, batch: BatchArrays) -> None:
        written = np.unique(batch.slot_mapping // self.config.block_size)
        # The source of a copy counts one reference for the copy, which is made before anything is written.
        written = written[~np.isin(written, batch.block_copies[:, 0])]
        assert (self.pool.states()[written] == BlockState.ACTIVE).all()

    def check(self) -> None:
        self.scheduler.check()
        self.model.poison(self.pool.states() == BlockState.FREE)
        assert self.pool.num_free + self.pool.num_cached + self.pool.num_used == self.pool.num_blocks

    def run(self, max_steps: int = 10_000) -> None:
        """Steps until all requests have ended."""
        for _ in range(max_steps):
            if self.step() is None:
                return
        raise AssertionError(f"still at work after {max_steps} steps")

    def steps_until(self, request: Request, num_tokens: int = 1) -> int:
        """Steps from now until the request has so many output tokens."""
        for steps in range(1, 10_000):
            assert self.step() is not None
            if request.num_output_tokens >= num_tokens:
                return steps
        raise AssertionError("never")

    def expected(self, request: Request) -> tuple[list[int], str]:
        """The sequential oracle."""
        params, virtual = request.sampling_params, self._virtual[request.request_id]
        ends = set(params.stop_token_ids or ()) | (set() if params.ignore_eos else {EOS})
        return continuation(
            [*(virtual.kv if virtual else ()), *request.prompt_token_ids],
            vocab_size=self.model.vocab_size,
            max_length=min(self.config.max_model_len, self.config.num_slots + 1),
            max_tokens=params.max_tokens,
            min_tokens=params.min_tokens,
            ends=ends,
            salt=self._salts[request.request_id],
        )

    def assert_right(self, *requests: Request) -> None:
        """The request ended as if it had been alone."""
        for request in requests or self.requests.values():
            assert (request.output_token_ids, request.finish_reason) == self.expected(request)
            assert request.output_token_ids == self.tokens[request.request_id]

    def assert_idle(self) -> None:
        """Nothing leaks."""
        assert not self.scheduler.has_work()
        assert self.pool.num_used == 0
        assert self.scheduler.table.num_rows == 0
        assert self.scheduler.table.num_promised_blocks == 0
