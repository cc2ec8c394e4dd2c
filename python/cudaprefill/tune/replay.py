"""A workload through the real scheduler and block pool, on a virtual clock: only the forward pass is made up."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from cudaprefill.engine.request import Request
from cudaprefill.engine.schedule import Schedule
from cudaprefill.engine.scheduler import Scheduler
from cudaprefill.engine.scheduler_config import SchedulerConfig
from cudaprefill.engine.step_cost import StepWork
from cudaprefill.errors import QueueFullError
from cudaprefill.sampling_params import SamplingParams
from cudaprefill.tune.figures import Figures, Run, mean_figures
from cudaprefill.tune.workload import Arrival, TokenIds, Workload

ENOUGH_REQUESTS = 500  # for which one replay says enough
MOST_REPLAYS = 8


class StepTimes(Protocol):
    """How long a step takes, and what passes until the next one may start; StepModel is one."""

    def draw(self, work: StepWork, now: float, random: np.random.Generator) -> float: ...
    def draw_gap(self, work: StepWork, random: np.random.Generator) -> float: ...


@dataclass(eq=False)
class _Member:
    """One output of one request."""

    arrival: Arrival
    token_ids: TokenIds  # prompt and output
    num_output_tokens: int  # that it is to have
    num_given: int = 0
    last_token: float = 0.0
    num_scheduled: int = 0


@dataclass(order=True)
class _Event:
    time: float
    order: int
    act: Callable[[], None] = field(compare=False)


class Replay:
    """Runs once. Equal seeds give equal runs.

    Requests that can never run with these settings are counted as refused, as are those that find the queue full.
    """

    def __init__(self, workload: Workload, config: SchedulerConfig, times: StepTimes, seed: int = 0) -> None:
        self.run = Run()
        self._now = 0.0
        self._scheduler = Scheduler(config, clock=lambda: self._now, hash_key=(1, 2))
        self._times = times
        self._random = np.random.default_rng(seed)
        self._members: dict[Request, _Member] = {}
        self._events: list[_Event] = []  # arrivals and aborts to come
        self._begin = workload.arrivals[0].time
        for index, arrival in enumerate(workload):
            self._at(arrival.time - self._begin + arrival.delay, lambda a=arrival, i=index: self._submit(a, i))  # type: ignore[misc]

    def to_end(self) -> Run:
        while self._events or self._scheduler.has_work():
            if not self._scheduler.has_work():
                self._now = max(self._now, self._events[0].time)
            while self._events and self._events[0].time <= self._now:
                heapq.heappop(self._events).act()
            schedule = self._scheduler.schedule(self._now)
            if schedule is not None:
                self._step(schedule)
        return self.run

    def _at(self, time: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, _Event(time, len(self._members) + len(self._events), act))

    def _submit(self, arrival: Arrival, index: int) -> None:
        token_ids = arrival.token_ids(index)
        prompt = token_ids[: arrival.num_prompt_tokens].tolist()
        # The scheduler forks the n outputs with the limits of the first: each is ended here when it has its tokens.
        params = SamplingParams(max_tokens=max(arrival.num_output_tokens), ignore_eos=True)
        members = [
            Request(
                request_id=f"{index}#{place}",
                prompt_token_ids=prompt,
                sampling_params=params,
                arrival_time=arrival.time - self._begin,
                priority=arrival.priority,
            )
            for place in range(len(arrival.num_output_tokens))
        ]
        members[0].siblings.extend(members[1:])
        try:
            self._scheduler.add(members[0])
        except (ValueError, QueueFullError):
            self.run.refused += len(members)
            return
        for place, (member, count) in enumerate(zip(members, arrival.num_output_tokens, strict=True)):
            own = token_ids if place == 0 else arrival.token_ids(index + (place << 40))
            self._members[member] = _Member(arrival, own, count)
        if arrival.aborted_after is not None:
            self._at(members[0].arrival_time + arrival.aborted_after, lambda: self._abort(members[0]))

    def _abort(self, lead: Request) -> None:
        for member in (lead, *lead.siblings):
            self._scheduler.finish(member, "abort")
            self._members.pop(member, None)

    def _step(self, schedule: Schedule) -> None:
        work = schedule.work
        self._now += self._times.draw(work, self._now, self._random)
        run, members = self.run, self._members
        tokens = []
        for request in schedule.sampled:
            member = members[request]
            tokens.append(int(member.token_ids[len(request.prompt_token_ids) + member.num_given]))
        for chunk in schedule.chunks:
            self._count_admission(chunk.request)
        self._scheduler.commit(schedule, tokens, self._now)
        for request in schedule.sampled:
            member = members[request]
            if member.num_given == 0:
                run.ttfts.append(self._now - request.arrival_time)
            else:
                run.itls.append(self._now - member.last_token)
            member.num_given += 1
            member.last_token = self._now
            if member.num_given == member.num_output_tokens:
                self._scheduler.finish(request, "length")
            if request.finished:
                del members[request]
        self._scheduler.end_step(schedule)
        run.output_tokens += len(schedule.sampled)
        run.steps += 1
        run.largest_step = max(run.largest_step, schedule.num_tokens)
        run.preemptions += len(schedule.preempted)
        run.end = self._now
        if self._scheduler.has_work():
            self._now += self._times.draw_gap(work, self._random)

    def _count_admission(self, lead: Request) -> None:
        """Once a request: what it found in the prefix cache at first."""
        for request in (lead, *lead.siblings):
            member = self._members.get(request)
            if member is not None and not member.num_scheduled:
                member.num_scheduled = 1
                self.run.prompt_tokens += len(request.prompt_token_ids)
                self.run.hit_tokens += request.num_hit_tokens


def replay(workload: Workload, config: SchedulerConfig, times: StepTimes, seed: int = 0) -> Run:
    return Replay(workload, config, times, seed).to_end()


def replay_often(workload: Workload, config: SchedulerConfig, times: StepTimes, seed: int = 0) -> Figures:
    """A short workload several times, so that one draw of step times does not decide on a percentile of few requests.

    Raises ValueError if no request got a token.
    """
    count = max(1, min(MOST_REPLAYS, ENOUGH_REQUESTS // len(workload.arrivals)))
    seeds = range(MOST_REPLAYS * seed, MOST_REPLAYS * seed + count)
    return mean_figures([replay(workload, config, times, each).figures() for each in seeds])
