"""Who asks for how many tokens, and when."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

TokenIds = NDArray[np.int32]


@dataclass(frozen=True, kw_only=True)
class Arrival:
    """One request. Its tokens are made up, but equal prefixes are equal.

    prefix: names the first tokens of prompt and output, `prefix_block` for each name. Two requests whose first k names
        are the same have the same first k * prefix_block tokens. What is left is the request's own.
    num_output_tokens: of each of its outputs, the first one first; a request ends when it has them.
    aborted_after: seconds from `time`, for a request that was given up before its first token.
    """

    id: str
    time: float  # when it is received, in seconds from the beginning
    num_prompt_tokens: int
    num_output_tokens: tuple[int, ...]
    delay: float = 0.0  # seconds from there until it can be handed to the engine: tokenizing
    priority: int = 0
    prefix: NDArray[np.uint64] = dataclasses.field(default_factory=lambda: np.empty(0, dtype=np.uint64))
    prefix_block: int = 16
    aborted_after: float | None = None

    def token_ids(self, seed: int) -> TokenIds:
        """Prompt and first output; `seed` makes the part that is not shared the request's own."""
        length = self.num_prompt_tokens + max(self.num_output_tokens)
        shared = _tokens_of(self.prefix, self.prefix_block)[:length]
        own = _tokens_of(np.array([seed], dtype=np.uint64) ^ np.uint64(_OWN), length - len(shared))
        return np.concatenate((shared, own))


# Odd constants with well mixed bits: the fractional parts of the golden ratio and of the square root of 2 and 3.
_STEP, _MIX, _OWN = 0x9E3779B97F4A7C15, 0x6A09E667F3BCC909, 0xBB67AE8584CAA73B


def _tokens_of(names: NDArray[np.uint64], count: int) -> TokenIds:
    """`count` tokens for each name, different for different names."""
    places = np.arange(1, count + 1, dtype=np.uint64)
    with np.errstate(over="ignore"):
        mixed = (names[:, None] + places * np.uint64(_STEP)) * np.uint64(_MIX)
        mixed ^= mixed >> np.uint64(29)
        mixed *= np.uint64(_STEP)
    tokens: TokenIds = (mixed >> np.uint64(33)).astype(np.int32).reshape(-1)
    return tokens


@dataclass(frozen=True)
class Workload:
    """Arrivals, oldest first."""

    arrivals: Sequence[Arrival]
    source: str  # for a person

    def __post_init__(self) -> None:
        if not self.arrivals:
            raise ValueError(f"{self.source} has no requests")

    @property
    def duration(self) -> float:
        """Seconds from the first to the last arrival."""
        return self.arrivals[-1].time - self.arrivals[0].time

    def __iter__(self) -> Iterator[Arrival]:
        return iter(self.arrivals)

    def faster(self, factor: float) -> Workload:
        """The same requests at a rate `factor` times as high."""
        if not 0 < factor < math.inf:
            raise ValueError(f"the rate factor must be positive, got {factor}")
        arrivals = [dataclasses.replace(arrival, time=arrival.time / factor) for arrival in self.arrivals]
        return Workload(arrivals, f"{self.source} at {factor:g} times the rate")


@dataclass(frozen=True, kw_only=True)
class SyntheticTraffic:
    """Poisson arrivals, log-normal lengths, and prompts that begin with one of a few shared prefixes.

    Raises ValueError naming the field that is wrong.
    """

    requests: int = 200
    rate: float = 1.0  # a second
    prompt: float = 512.0  # mean tokens, the shared prefix not counted
    output: float = 128.0  # mean tokens
    spread: float = 0.6  # standard deviation of the lengths' logarithms; 0: all the same
    prefix: int = 0  # tokens that prompts share
    prefixes: int = 1  # how many different ones there are
    seed: int = 0

    def __post_init__(self) -> None:
        least_values = {"requests": 1, "prompt": 1, "output": 1, "spread": 0, "prefix": 0, "prefixes": 1}
        for name, least in least_values.items():
            if not least <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if not 0 < self.rate < math.inf:
            raise ValueError(f"rate must be positive, got {self.rate}")

    @classmethod
    def parse(cls, text: str) -> SyntheticTraffic:
        """`rate=2,requests=500,prompt=800`. Raises ValueError naming what is not understood."""
        kinds = {name: type(value) for name, value in vars(cls()).items()}
        values: dict[str, float] = {}
        for item in filter(None, text.split(",")):
            name, _, value = item.partition("=")
            if name not in kinds:
                raise ValueError(f"synthetic traffic has {', '.join(kinds)}; got {item!r}")
            try:
                values[name] = kinds[name](value)
            except ValueError:
                raise ValueError(f"{name} of synthetic traffic must be a number, got {value!r}") from None
        return cls(**values)  # type: ignore[arg-type]

    def make(self) -> Workload:
        random = np.random.default_rng(self.seed)
        times = np.cumsum(random.exponential(1 / self.rate, self.requests))
        prompts = self._lengths(random, self.prompt)
        outputs = self._lengths(random, self.output)
        chosen = random.integers(self.prefixes, size=self.requests)
        arrivals = [
            Arrival(
                id=f"synthetic-{index}",
                time=float(times[index] - times[0]),
                num_prompt_tokens=self.prefix + int(prompts[index]),
                num_output_tokens=(int(outputs[index]),),
                prefix=np.array([chosen[index]] if self.prefix else [], dtype=np.uint64),
                prefix_block=max(self.prefix, 1),
            )
            for index in range(self.requests)
        ]
        return Workload(arrivals, "synthetic traffic")

    def _lengths(self, random: np.random.Generator, mean: float) -> NDArray[np.int64]:
        lengths = random.lognormal(math.log(mean) - self.spread**2 / 2, self.spread, self.requests)
        return np.maximum(1, np.rint(lengths)).astype(np.int64)
