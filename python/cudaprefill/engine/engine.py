"""The engine: one step at a time. Not thread-safe; `EngineThread` gives it a thread of its own."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from cudaprefill.engine.batch import Batch
from cudaprefill.engine.model_runner import ModelRunner
from cudaprefill.engine.output_delta import OutputDelta
from cudaprefill.engine.output_processor import OutputProcessor
from cudaprefill.engine.request import Request
from cudaprefill.engine.sampler import Sampler, SamplerOutput
from cudaprefill.engine.schedule import Schedule
from cudaprefill.engine.scheduler import Scheduler
from cudaprefill.observe.events import StepEvent
from cudaprefill.text.tokenizer import Tokenizer

Clock = Callable[[], float]


class Engine:
    """Joins the scheduler, the model and the sampler.

    on_step: is told of every step; nothing is built for it when it is None.
    clock: seconds; arrival times of requests must come from the same one.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        model_runner: ModelRunner,
        tokenizer: Tokenizer,
        device: torch.device,
        *,
        clock: Clock = time.monotonic,
        on_step: Callable[[StepEvent], None] | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.model_runner = model_runner
        self.device = device
        self.on_step = on_step
        self._clock = clock
        self._sampler = Sampler()
        self._outputs = OutputProcessor(tokenizer, scheduler.finish)

    def submit(self, request: Request) -> None:
        """Raises ValueError for what can never run, QueueFullError when too many wait."""
        self.scheduler.add(request)
        self._outputs.add(request)

    def abort(self, request_id: str) -> list[OutputDelta]:
        """Ends a request with all its outputs; nothing for an id that is unknown or finished."""
        return self._outputs.abort(request_id, self._clock())

    def has_work(self) -> bool:
        return self.scheduler.has_work()

    def step(self) -> list[OutputDelta]:
        """One step: what each request that got a token got. When it fails, its requests lose their blocks."""
        start = self._clock()
        schedule = self.scheduler.schedule()
        if schedule is None:
            return []
        for chunk in schedule.chunks:
            self._outputs.record_scheduled(chunk.request, start)
        try:
            batch = Batch.from_arrays(self.scheduler.build(schedule), self.device)
            logits = self.model_runner.run(batch)
            states = self._outputs.sampling_states(schedule.sampled)
            samples = self._sampler.sample(logits, list(zip(schedule.sample_rows.tolist(), states, strict=True)))
        except BaseException:
            self.scheduler.discard(schedule)
            raise
        deltas = self._commit(schedule, samples)
        if self.on_step is not None:
            self.on_step(self.scheduler.step_event(schedule, start, self._clock() - start))
        return deltas

    def _commit(self, schedule: Schedule, samples: SamplerOutput) -> list[OutputDelta]:
        """An output without a token fails alone; the others get theirs."""
        now = self._clock()
        failed = {
            place: self._outputs.fail(schedule.sampled[place], RuntimeError(error), now)
            for place, error in samples.errors.items()
        }
        self.scheduler.commit(schedule, samples.token_ids)
        return [
            failed.get(place) or self._outputs.process_token(request, token_id, logprobs, now)
            for place, (request, token_id, logprobs) in enumerate(
                zip(schedule.sampled, samples.token_ids, samples.logprobs, strict=True)
            )
        ]

    def check(self) -> None:
        """Verifies the block pool, the request table and the queues; raises RuntimeError with what is wrong."""
        self.scheduler.check()
