"""The engine: one step at a time. Not thread-safe; `EngineThread` gives it a thread of its own."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from cudaprefill.adapters.lora_batch import LoraBatches
from cudaprefill.engine.batch import Batch
from cudaprefill.engine.model_runner import ModelRunner
from cudaprefill.engine.output_delta import OutputDelta
from cudaprefill.engine.output_processor import OutputProcessor
from cudaprefill.engine.prompt_logprobs import prompt_logprobs, prompt_rows
from cudaprefill.engine.request import Request
from cudaprefill.engine.sampler import Sampler, SamplerOutput
from cudaprefill.engine.sampling_state import SamplingState
from cudaprefill.engine.schedule import Schedule
from cudaprefill.engine.scheduler import Scheduler
from cudaprefill.engine.virtual_rows import with_virtual_rows
from cudaprefill.observe.direct_hub import DirectHub
from cudaprefill.observe.event_hub import EventHub
from cudaprefill.observe.events import StepEvent
from cudaprefill.protocol.itl_target import ItlTarget
from cudaprefill.protocol.telemetry import EngineSettings
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
        self._lora = LoraBatches(device)
        self._sampler = Sampler()
        self._outputs = OutputProcessor(tokenizer, scheduler.finish)

    def submit(self, request: Request) -> None:
        """Raises ValueError for what can never run, QueueFullError when too many wait."""
        outputs = self._outputs.make(request)  # before anybody has heard of the request: it may raise
        self.scheduler.add(request)
        self._outputs.add(outputs)

    def abort(self, request_id: str) -> list[OutputDelta]:
        """Ends a request with all its outputs; nothing for an id that is unknown or finished."""
        return self._outputs.abort(request_id, self._clock())

    def abort_all(self) -> list[OutputDelta]:
        """Ends all requests with all their outputs."""
        return self._outputs.abort_all(self._clock())

    def end_all(self) -> None:
        """Ends all requests with "error" and without deltas: nobody will step the engine any more."""
        self.scheduler.finish_all("error")

    def listen(self, hub: EventHub | DirectHub | None) -> None:
        """Tells `hub` all that happens from now on; None: nobody."""
        self.scheduler.on_event = None if hub is None else hub.on_event
        self.on_step = None if hub is None else hub.on_step

    @property
    def settings(self) -> EngineSettings:
        """What `change_settings` changes; may be read from any thread."""
        return self.scheduler.settings

    def change_settings(
        self,
        *,
        max_num_batched_tokens: int | None = None,
        long_prefill_token_threshold: int | None = None,
        itl_target_ms: ItlTarget | None = None,
    ) -> EngineSettings:
        """Changes those that are given, from the next step on, and returns all. A target of 0 takes it away.

        Raises ValueError naming the setting and both numbers; nothing is changed then.
        """
        self.scheduler.change_settings(max_num_batched_tokens, long_prefill_token_threshold, itl_target_ms)
        return self.settings

    def has_work(self) -> bool:
        return self.scheduler.has_work()

    def step(self) -> list[OutputDelta]:
        """One step: what each request that got a token got. When it fails, its requests lose their blocks.

        Work for one request that fails (its row of logits, sampling, text) ends that request alone.
        """
        start = self._clock()
        schedule = self.scheduler.schedule(start)
        if schedule is None:
            return []
        for chunk in schedule.chunks:
            self._outputs.record_scheduled(chunk.request, start)
        try:
            batch = Batch.from_arrays(self.scheduler.build(schedule), self.device)
            batch = self._lora.with_lora_rows(with_virtual_rows(batch, schedule), schedule)
            logits, broken = self._run(batch, schedule)
            samples, errors = self._sample(logits, schedule)
            errors |= {place: broken[r] for place, r in enumerate(schedule.sampled) if r in broken}
            now = self._clock()
            self.scheduler.commit(schedule, samples.token_ids, now, failed=errors)
            deltas = self._outputs.process(schedule.sampled, samples, errors, now)
            for request, error in broken.items():
                deltas += self._outputs.fail(request.request_id, error, now)
        except BaseException:
            self.scheduler.discard(schedule)
            raise
        self.scheduler.end_step(schedule)
        if self.on_step is not None:
            self.on_step(self.scheduler.step_event(schedule, start, self._clock() - start))
        return deltas

    def _run(self, batch: Batch, schedule: Schedule) -> tuple[torch.Tensor, dict[Request, Exception]]:
        """The logits to sample from; those of prompts become log-probabilities on the way, where asked for.

        Also the requests for which that failed, and why.
        """
        broken: dict[Request, Exception] = {}
        scored = prompt_rows(schedule)
        if not scored:
            return self.model_runner.run(batch), broken
        hidden = self.model_runner.hidden(batch)
        logits = self.model_runner.logits(hidden.index_select(0, batch.logits_rows))
        for rows in scored:
            try:
                logprobs = prompt_logprobs(self.model_runner, hidden, rows, logits.shape[1])
                self._outputs.add_prompt_logprobs(rows.request, rows.position, logprobs)
            except Exception as error:
                broken[rows.request] = error
        return logits, broken

    def _sample(self, logits: torch.Tensor, schedule: Schedule) -> tuple[SamplerOutput, dict[int, Exception]]:
        """A token of each of `schedule.sampled`, and why the others, by their place, have none."""
        states = self._outputs.sampling_states(schedule.sampled)
        outputs = list(zip(schedule.sample_rows.tolist(), states, strict=True))
        try:
            samples = self._sampler.sample(logits, outputs)
        except Exception:
            return self._sample_each(logits, outputs)
        return samples, {place: RuntimeError(reason) for place, reason in samples.errors.items()}

    def _sample_each(
        self, logits: torch.Tensor, outputs: list[tuple[int, SamplingState]]
    ) -> tuple[SamplerOutput, dict[int, Exception]]:
        """One output after the other, to tell whose it is that cannot be sampled. No draw is lost by a second try."""
        samples = SamplerOutput([-1] * len(outputs), [None] * len(outputs))
        errors: dict[int, Exception] = {}
        for place, output in enumerate(outputs):
            try:
                sample = self._sampler.sample(logits, [output])
            except Exception as error:
                errors[place] = error
                continue
            samples.token_ids[place], samples.logprobs[place] = sample.token_ids[0], sample.logprobs[0]
            if sample.errors:
                errors[place] = RuntimeError(sample.errors[0])
        return samples, errors

    def check(self) -> None:
        """Verifies the block pool, the request table and the queues; raises RuntimeError with what is wrong."""
        self.scheduler.check()
