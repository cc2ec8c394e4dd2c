"""How long a step will last, learned from those that ran, and what chunks fit into the time that is left."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple


class StepWork(NamedTuple):
    """What a step computes, as far as it takes time."""

    chunk_tokens: int = 0
    chunk_pairs: float = 0.0  # of a chunk's token and one that it sees
    decodes: int = 0
    decode_context: int = 0  # tokens that the decodes see

    def features(self) -> tuple[float, ...]:
        """What the duration is linear in. The scales only keep the numbers near 1.

        That a step has chunks at all counts: it cannot replay a graph of decodes, and runs kernels of its own.
        """
        return (
            1.0,
            1.0 if self.chunk_tokens else 0.0,
            self.chunk_tokens / 256,
            self.chunk_pairs / (256 * 1024),
            self.decodes / 16,
            self.decode_context / (16 * 1024),
        )


def chunk_pairs(start: int, length: int) -> float:
    """Token start + i of a chunk sees start + i tokens, and itself."""
    return length * (start + length / 2)


_NUM_FEATURES = len(StepWork().features())
_MIN_OBSERVATIONS = 4  # before the first prediction

# Shares of a step's duration: the deviation that is taken for noise, and of a coefficient: how much it may drift from
# one step to the next, and how uncertain it may become by drifting alone, while nothing is seen of it.
_MIN_DEVIATION, _MAX_DEVIATION = 0.02, 0.25
_DRIFT, _MAX_DRIFT = 0.02, 0.5
_RATE = 0.05  # of running means
_SHORTEST = 1e-6  # seconds: below, a duration says more of the clock

_OUTLIER = 4.0  # standard deviations
_OUTLIERS_THAT_ARE_A_CHANGE = 3  # in a row: it is the machine that is another


class StepCost:
    """A linear model of a step's duration, by a Kalman filter.

        duration = base + base with chunks + a * chunk tokens + b * chunk pairs + c * decodes + d * decode context

    No coefficient is negative.

    The coefficients are taken for a random walk, which is least squares with a memory that fades only in the directions
    in which something new is seen: after an hour of decodes the cost of a chunk is still known. Errors count relative
    to the duration. Nothing is learned from a step that lasts much longer or shorter than expected, but that the next
    ones may be off as well; three in a row reopen all.
    (R. E. Kalman, A New Approach to Linear Filtering and Prediction Problems, 1960.)
    """

    def __init__(self) -> None:
        self.pause = 0.0  # seconds from a step's tokens to the start of the next step: a running mean
        self.max_chunk_tokens = 0  # of any step that ran
        self.max_chunk_pairs = 0.0
        self._coefficients = [0.0] * _NUM_FEATURES
        self._covariance = [[0.0] * _NUM_FEATURES for _ in range(_NUM_FEATURES)]
        self._seen = [False] * _NUM_FEATURES
        self._deviation = 0.1
        self._num_observations = 0
        self._num_outliers = 0  # in a row

    @property
    def deviation(self) -> float:
        """By which share of their duration the last steps were off, on average."""
        return self._deviation

    @property
    def known(self) -> bool:
        """Whether enough steps were seen to predict any."""
        return self._num_observations >= _MIN_OBSERVATIONS

    @property
    def seconds_per_chunk_token(self) -> float:
        return self._coefficients[2] / 256

    @property
    def seconds_per_chunk_pair(self) -> float:
        return self._coefficients[3] / (256 * 1024)

    def predict(self, work: StepWork) -> float | None:
        """Seconds from the start of the step to its tokens; None while too little is known."""
        if not self.known:
            return None
        return _dot(self._coefficients, work.features())

    def observe_pause(self, seconds: float) -> None:
        """From the tokens of a step to the start of the one right behind it."""
        self.pause += _RATE * (min(seconds, 4 * self.pause + 1e-3) - self.pause)

    def observe(self, work: StepWork, seconds: float) -> None:
        """A step of `work` took `seconds` from its start to its tokens."""
        if seconds < _SHORTEST:
            return
        self.max_chunk_tokens = max(self.max_chunk_tokens, work.chunk_tokens)
        self.max_chunk_pairs = max(self.max_chunk_pairs, work.chunk_pairs)
        features = work.features()
        covariance = self._covariance
        for j, feature in enumerate(features):
            if feature > 0.0 and not self._seen[j]:  # at most, all the time is its doing
                self._seen[j] = True
                covariance[j][j] = (seconds / feature) ** 2
            if covariance[j][j] < (_MAX_DRIFT * self._coefficients[j]) ** 2:
                covariance[j][j] += (_DRIFT * self._coefficients[j]) ** 2
        expected = _dot(self._coefficients, features)
        error = seconds - expected
        noise = (self._deviation * max(min(seconds, expected), 0.1 * seconds)) ** 2
        spread = [_dot(row, features) for row in covariance]
        variance = _dot(spread, features) + noise
        off = min(abs(error) / max(seconds, expected), _MAX_DEVIATION)
        self._deviation = max(self._deviation + _RATE * (off - self._deviation), _MIN_DEVIATION)
        if error * error > _OUTLIER**2 * variance:
            self._num_outliers += 1
            if self._num_outliers < _OUTLIERS_THAT_ARE_A_CHANGE:
                return
            self._reopen(features, error)
            spread = [_dot(row, features) for row in covariance]
            variance = _dot(spread, features) + noise
        self._num_outliers = 0
        self._num_observations += 1
        for j in range(_NUM_FEATURES):
            gain = spread[j] / variance
            self._coefficients[j] += gain * error
            for k in range(_NUM_FEATURES):
                covariance[j][k] -= gain * spread[k]
        self._project()

    def _project(self) -> None:
        """Moves to where no coefficient is negative, along what the steps so far left open."""
        coefficients = self._coefficients
        for _ in range(_NUM_FEATURES):
            j = min(range(_NUM_FEATURES), key=coefficients.__getitem__)
            excess, variance = coefficients[j], self._covariance[j][j]
            if excess >= 0.0:
                return
            if variance > 0.0:
                for k in range(_NUM_FEATURES):
                    coefficients[k] -= excess * self._covariance[k][j] / variance
            coefficients[j] = 0.0
        self._coefficients = [max(0.0, coefficient) for coefficient in coefficients]

    def _reopen(self, features: tuple[float, ...], error: float) -> None:
        """Every coefficient may be another by now, those that this step says something of by all of the error."""
        for j, feature in enumerate(features):
            possible = max(self._coefficients[j], abs(error) / feature if feature > 0.0 else 0.0)
            self._covariance[j] = [0.0] * _NUM_FEATURES
            self._covariance[j][j] = possible**2


def _dot(a: list[float], b: list[float] | tuple[float, ...]) -> float:
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2] + a[3] * b[3] + a[4] * b[4] + a[5] * b[5]


@dataclass(slots=True)
class _Limit:
    """Something that chunks use up."""

    left: float
    per_token: float
    per_pair: float

    def tokens_at(self, start: int) -> float:
        """The most tokens of a chunk that starts at `start`: per_pair / 2 * n**2 + slope * n <= left."""
        if self.left <= 0.0:
            return 0.0
        slope = self.per_token + self.per_pair * start
        root = math.sqrt(slope * slope + 2.0 * self.per_pair * self.left)
        return 2.0 * self.left / (slope + root) if root > 0.0 else math.inf

    def spend(self, start: int, length: int) -> None:
        self.left -= self.per_token * length + self.per_pair * chunk_pairs(start, length)


_MARGIN = 2.5  # mean deviations: with noise of the usual kind, two standard deviations

# While a step has to keep to a target: what it gives to prompts in any case, so that none starves.
LEAST_CHUNK_TOKENS = 16
# While nothing is predicted a step gets so many; later, at most this many times as many as any step had before, so that
# the unknown is explored step by step.
_FIRST_CHUNK_TOKENS = 64
_GROWTH = 2


class ChunkRoom:
    """What chunks may use up in one step: tokens, and where there is a target, time."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens  # of the budget
        self._limits: list[_Limit] = []
        self._least = 0

    def keep_to(self, target: float, cost: StepCost, decodes: StepWork) -> None:
        """The step must not let its decodes wait for more than `target` seconds, pause included.

        It is planned as if it lasted longer than predicted by some times what steps are off on average.
        """
        one_token = cost.predict(decodes._replace(chunk_tokens=1))
        if one_token is not None:
            base = one_token - cost.seconds_per_chunk_token
            seconds = (target - cost.pause) / (1.0 + _MARGIN * cost.deviation) - base
            self._limits.append(_Limit(seconds, cost.seconds_per_chunk_token, cost.seconds_per_chunk_pair))
        growth = _GROWTH if cost.known else 0
        tokens = max(growth * cost.max_chunk_tokens, _FIRST_CHUNK_TOKENS)
        pairs = max(growth * cost.max_chunk_pairs, chunk_pairs(0, _FIRST_CHUNK_TOKENS))
        self._limits += [_Limit(tokens, 1.0, 0.0), _Limit(pairs, 0.0, 1.0)]
        self._least = LEAST_CHUNK_TOKENS

    def tokens_at(self, start: int) -> int:
        """The most tokens that a chunk may have that starts at `start`."""
        if not self._limits:
            return self.tokens
        most = min(limit.tokens_at(start) for limit in self._limits)
        return min(self.tokens, max(int(min(most, self.tokens)), self._least))

    def spend(self, start: int, length: int) -> None:
        """A chunk of `length` tokens from `start` on is planned."""
        self.tokens -= length
        self._least = max(0, self._least - length)
        for limit in self._limits:
            limit.spend(start, length)
