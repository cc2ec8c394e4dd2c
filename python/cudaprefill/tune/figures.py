"""What came of a run, measured or replayed: the times that clients see, and what the machine did for them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cudaprefill.observe.events import RequestEvent, RequestEventKind, StepEvent

PERCENTILES = (50, 90, 99)


@dataclass
class Run:
    """A run as it is collected. A token leaves the engine when its step ends."""

    ttfts: list[float] = field(default_factory=list)
    itls: list[float] = field(default_factory=list)
    prompt_tokens: int = 0  # of requests that were admitted
    hit_tokens: int = 0
    output_tokens: int = 0
    preemptions: int = 0
    steps: int = 0
    largest_step: int = 0  # tokens
    refused: int = 0  # requests that can never run with these settings
    end: float = 0.0  # of the last step, in seconds from the first arrival

    def figures(self) -> Figures:
        """Raises ValueError if no request got a token."""
        if not self.ttfts:
            raise ValueError("no request got a token")
        return Figures(
            requests=len(self.ttfts),
            refused=self.refused,
            ttft=_percentiles(self.ttfts),
            itl=_percentiles(self.itls) if self.itls else dict.fromkeys(map(_name, PERCENTILES), 0.0),
            output_tokens_per_second=self.output_tokens / self.end,
            hit_rate=self.hit_tokens / max(1, self.prompt_tokens),
            preemptions=self.preemptions,
            steps=self.steps,
            largest_step=self.largest_step,
            seconds=self.end,
        )


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Times in seconds; `ttft` and `itl` by percentile: p50, p90, p99."""

    requests: int  # that got a token
    refused: int
    ttft: dict[str, float]
    itl: dict[str, float]
    output_tokens_per_second: float
    hit_rate: float  # share of prompt tokens found in the prefix cache
    preemptions: int
    steps: int
    largest_step: int  # tokens
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def mean_figures(several: Sequence[Figures]) -> Figures:
    """Of runs of one workload.

    Percentiles are averaged, not taken of all values together: with few of them they lie between two.
    """

    def mean(name: str) -> float:
        return float(np.mean([getattr(figures, name) for figures in several]))

    def percentiles(name: str) -> dict[str, float]:
        return {key: float(np.mean([getattr(figures, name)[key] for figures in several])) for key in several[0].ttft}

    return Figures(
        requests=round(mean("requests")),
        refused=round(mean("refused")),
        ttft=percentiles("ttft"),
        itl=percentiles("itl"),
        output_tokens_per_second=mean("output_tokens_per_second"),
        hit_rate=mean("hit_rate"),
        preemptions=round(mean("preemptions")),
        steps=round(mean("steps")),
        largest_step=max(figures.largest_step for figures in several),
        seconds=mean("seconds"),
    )


def relative_errors(predicted: Figures, measured: Figures) -> dict[str, float]:
    """By name (ttft_p50, ...): predicted / measured - 1."""
    errors = {}
    for kind in ("ttft", "itl"):
        for name, value in getattr(measured, kind).items():
            if value > 0:
                errors[f"{kind}_{name}"] = getattr(predicted, kind)[name] / value - 1
    errors["output_tokens_per_second"] = predicted.output_tokens_per_second / measured.output_tokens_per_second - 1
    return errors


def recorded_run(events: Iterable[RequestEvent | StepEvent]) -> Run:
    """What a trace measured, by the same definitions as a replay."""
    run = Run()
    arrivals: dict[int, float] = {}
    first_tokens: dict[int, int] = {}  # requests whose first token came in the step that is not told yet
    last_token: dict[int, float] = {}
    begin: float | None = None
    for event in events:
        if isinstance(event, StepEvent):
            end = event.start + event.duration
            given = set(event.decode_numbers) | {chunk.number for chunk in event.chunks if chunk.is_last}
            for number in given | first_tokens.keys():
                if number in last_token:
                    run.itls.append(end - last_token[number])
                elif number in arrivals:
                    run.ttfts.append(end - arrivals[number])
                last_token[number] = end
                run.output_tokens += 1
            first_tokens.clear()
            run.steps += 1
            run.largest_step = max(run.largest_step, event.num_tokens)
            run.preemptions += len(event.preempted_numbers)
            run.end = end - (begin or 0.0)
        elif event.kind is RequestEventKind.ARRIVED:
            arrivals[event.number] = event.time
            begin = event.time if begin is None else min(begin, event.time)
        elif event.kind is RequestEventKind.SCHEDULED and event.number not in last_token:
            run.hit_tokens += event.hit_tokens
        elif event.kind is RequestEventKind.FIRST_TOKEN:
            first_tokens[event.number] = event.step
    run.prompt_tokens = _admitted_prompt_tokens(events)
    return run


def _admitted_prompt_tokens(events: Iterable[RequestEvent | StepEvent]) -> int:
    prompts: dict[int, int] = {}
    total = 0
    for event in events:
        if isinstance(event, RequestEvent):
            if event.kind is RequestEventKind.ARRIVED:
                prompts[event.number] = event.num_prompt_tokens
            elif event.kind is RequestEventKind.SCHEDULED:
                total += prompts.pop(event.number, 0)
    return total


def _percentiles(values: list[float]) -> dict[str, float]:
    return {_name(p): float(value) for p, value in zip(PERCENTILES, np.percentile(values, PERCENTILES), strict=True)}


def _name(percentile: int) -> str:
    return f"p{percentile}"
