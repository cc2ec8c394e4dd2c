"""The real scheduler on a clock that the test moves: every time in it is known exactly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cudaprefill.engine.request import Request
from cudaprefill.engine.schedule import Schedule
from cudaprefill.engine.step_cost import StepWork
from cudaprefill.observe.events import RequestEvent, StepEvent
from cudaprefill.observe.explain.history import History
from tests.scheduler.driver import Driver


def one_second(work: StepWork) -> float:
    return 1.0


class FakeRun:
    """cost: seconds from the start of a step to its tokens.

    delivering: seconds from there to the step's end. gap: seconds between two steps.
    """

    def __init__(
        self,
        cost: Callable[[StepWork], float] = one_second,
        *,
        delivering: float = 0.0,
        gap: float = 0.0,
        **config: Any,
    ) -> None:
        self.driver = Driver(**config)
        self.driver.scheduler.record_prefixes(True)
        self.events: list[RequestEvent | StepEvent] = []
        self.driver.scheduler.on_event = self.events.append
        self._cost, self._delivering, self._gap = cost, delivering, gap

    @property
    def now(self) -> float:
        return self.driver.clock

    @now.setter
    def now(self, time: float) -> None:
        self.driver.clock = time

    def submit(self, prompt: list[int], *, received: float | None = None, **options: Any) -> Request:
        """Taken by the engine now."""
        tokenized = options.pop("tokenized", None)
        options = {"max_tokens": 1, "ignore_eos": True, **options}
        request = self.driver.request(prompt, arrival_time=self.now if received is None else received, **options)
        for member in (request, *request.siblings):
            member.tokenized_time = tokenized
        return self.driver.add(request)

    def step(self) -> Schedule:
        start = self.now
        schedule = self.driver.scheduler.schedule()
        assert schedule is not None
        self.now += self._cost(schedule.work)
        commit = self.driver.scheduler.commit

        def commit_and_deliver(*arguments: Any) -> None:
            commit(*arguments)
            self.now += self._delivering

        self.driver.scheduler.commit = commit_and_deliver  # type: ignore[method-assign]
        self.driver.finish_step(schedule)
        self.driver.scheduler.commit = commit  # type: ignore[method-assign]
        self.events.append(self.driver.scheduler.step_event(schedule, start, self.now - start))
        self.now += self._gap
        return schedule

    def run(self) -> None:
        while self.driver.scheduler.has_work():
            self.step()

    def history(self) -> History:
        config = self.driver.config
        return History.of(self.events, block_size=config.block_size, prefix_caching=config.enable_prefix_caching)
