"""A scheduler on a synthetic machine and its clock."""

from __future__ import annotations

import random
from typing import Literal

from cudaprefill.engine.request import Request
from cudaprefill.engine.schedule import Schedule
from tests.scheduler.driver import Driver
from tests.scheduler.synthetic_machine import SyntheticMachine

PAUSE = 0.0005  # seconds between two steps


class Run:
    """Requests on a scheduler whose steps last as the machine says."""

    def __init__(
        self, machine: SyntheticMachine, target: float | Literal["auto"] | None, *, budget: int = 2048, streams: int = 4
    ) -> None:
        self.machine = machine
        self.driver = Driver(
            num_blocks=20_000,
            max_model_len=16_384,
            max_num_batched_tokens=budget,
            max_num_seqs=32,
            itl_target_ms=target * 1e3 if isinstance(target, float) else target,
        )
        self.scheduler = self.driver.scheduler
        self.random_numbers = random.Random(0)
        self.steps: list[tuple[Schedule, float]] = []
        self.streams = [self.prompt(20, max_tokens=16_000) for _ in range(streams)]

    def prompt(self, length: int, max_tokens: int = 2) -> Request:
        token_ids = [self.random_numbers.randrange(2, 10**6) for _ in range(length)]
        request = self.driver.request(
            token_ids,
            request_id=f"p{self.random_numbers.random()}",
            max_tokens=max_tokens,
            ignore_eos=True,
            arrival_time=self.driver.clock,
        )
        self.scheduler.add(request)
        return request

    def step(self) -> Schedule:
        driver = self.driver
        schedule = self.scheduler.schedule(driver.clock)
        assert schedule is not None
        seconds = self.machine.seconds(schedule.work)
        driver.clock += seconds
        self.scheduler.commit(schedule, [3] * len(schedule.sampled), driver.clock)
        self.scheduler.end_step(schedule)
        driver.clock += PAUSE
        self.steps.append((schedule, seconds))
        return schedule

    def run_with_prompts(self, steps: int, every: int = 50) -> None:
        for number in range(steps):
            if number % every == 0:
                self.prompt(self.random_numbers.choice((300, 2000, 6000)))
            self.step()

    def gaps(self, first: int = 0) -> list[float]:
        """Between tokens of the streams, where chunks were computed beside them, in ascending order."""
        return sorted(
            seconds + PAUSE for schedule, seconds in self.steps[first:] if schedule.chunks and schedule.work.decodes
        )
