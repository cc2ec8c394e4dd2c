"""How long a step will last, learned from those that ran."""

from __future__ import annotations

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
        """Moves to where no coefficient is negative, along what the steps so far left open.

        A coefficient that was brought to zero is held there while the others move.
        """
        coefficients = self._coefficients
        if min(coefficients) >= 0.0:
            return
        covariance = [row.copy() for row in self._covariance]
        for _ in range(_NUM_FEATURES):
            j = min(range(_NUM_FEATURES), key=coefficients.__getitem__)
            excess, variance, row = coefficients[j], covariance[j][j], covariance[j].copy()
            if excess >= 0.0:
                return
            if variance > 0.0:
                for k in range(_NUM_FEATURES):
                    gain = row[k] / variance
                    coefficients[k] -= excess * gain
                    for m in range(_NUM_FEATURES):
                        covariance[k][m] -= gain * row[m]
            coefficients[j] = 0.0
            covariance[j] = [0.0] * _NUM_FEATURES
            for other in covariance:
                other[j] = 0.0
        self._coefficients = [max(0.0, coefficient) for coefficient in coefficients]

    def _reopen(self, features: tuple[float, ...], error: float) -> None:
        """Every coefficient may be another by now, those that this step says something of by all of the error."""
        for j, feature in enumerate(features):
            possible = max(self._coefficients[j], abs(error) / feature if feature > 0.0 else 0.0)
            self._covariance[j] = [0.0] * _NUM_FEATURES
            self._covariance[j][j] = possible**2


def _dot(a: list[float], b: list[float] | tuple[float, ...]) -> float:
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2] + a[3] * b[3] + a[4] * b[4] + a[5] * b[5]
