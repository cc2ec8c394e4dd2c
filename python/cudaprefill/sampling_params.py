"""What a caller may ask of sampling, checked field by field."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MAX_N = 128
MAX_STOP_STRINGS = 16
MAX_STOP_LENGTH = 1024  # characters
MAX_STOP_TOKEN_IDS = 256
MAX_LOGIT_BIAS = 1024
MAX_LOGPROBS = 20
MAX_INT = 2**31 - 1

# Below this temperature a softmax in float32 says no more than the argmax does.
GREEDY_TEMPERATURE = 1e-5


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How the tokens of one request are drawn and when it ends. Names and defaults are vLLM's.

    Every field is checked on construction; a ValueError names the field and shows the value. Booleans are not numbers
    here, and NaN and infinities are never accepted.

    n: completions of one prompt.
    temperature: 0 (and anything below 1e-5) is greedy.
    top_p: keeps the most likely tokens up to this much probability; 0 keeps the best one.
    top_k: keeps the k most likely tokens; 0 and -1 are off, 1 is greedy.
    min_p: keeps tokens at least this likely relative to the best one.
        The best token survives every filter, and tokens that tie with the last one kept are kept too.
    presence_penalty, frequency_penalty: over output tokens, -2 to 2.
    repetition_penalty: over prompt and output tokens, 0.01 to 100; 1 is off.
    seed: 0 to 2**64 - 1; the same seed gives the same tokens whatever else runs. None takes one from the system.
    logit_bias: token id -> a number from -100 to 100 added to its logit.
    max_tokens: None is as many as fit the model.
    min_tokens: neither EOS nor a stop ends the request before this many tokens.
    stop: strings that end the request; kept as a tuple, whether one string or several are given.
    stop_token_ids: tokens that end the request, besides EOS.
    ignore_eos: go on after EOS.
    include_stop_str_in_output: leave the stop string at the end of the text.
    logprobs: None, or how many of the most likely tokens to report (0 to 20) beside the sampled one.
    skip_special_tokens: leave control tokens out of the text.
    detokenize: False leaves the text empty; stop strings need it.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    logit_bias: Mapping[int, float] | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    logprobs: int | None = None
    skip_special_tokens: bool = True
    detokenize: bool = True

    def __post_init__(self) -> None:
        self._set("n", _integer("n", self.n, 1, MAX_N))
        self._set("temperature", _number("temperature", self.temperature, 0.0))
        self._set("top_p", _number("top_p", self.top_p, 0.0, 1.0))
        self._set("top_k", _integer("top_k", self.top_k, -1))
        self._set("min_p", _number("min_p", self.min_p, 0.0, 1.0))
        self._set("presence_penalty", _number("presence_penalty", self.presence_penalty, -2.0, 2.0))
        self._set("frequency_penalty", _number("frequency_penalty", self.frequency_penalty, -2.0, 2.0))
        self._set("repetition_penalty", _number("repetition_penalty", self.repetition_penalty, 0.01, 100.0))
        if self.seed is not None:
            self._set("seed", _integer("seed", self.seed, 0, 2**64 - 1))
        if self.max_tokens is not None:
            self._set("max_tokens", _integer("max_tokens", self.max_tokens, 1))
        self._set("min_tokens", _integer("min_tokens", self.min_tokens, 0))
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens is {self.min_tokens}, more than max_tokens, which is {self.max_tokens}")
        if self.logprobs is not None:
            self._set("logprobs", _integer("logprobs", self.logprobs, 0, MAX_LOGPROBS))
        self._set("logit_bias", _logit_bias(self.logit_bias))
        self._set("stop", _stop_strings(self.stop))
        self._set("stop_token_ids", _stop_token_ids(self.stop_token_ids))
        for name in ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens", "detokenize"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name} must be true or false, got {show(getattr(self, name))}")
        if self.stop and not self.detokenize:
            raise ValueError(f"stop needs detokenize=True, got stop={show(self.stop)} with detokenize=False")

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    @property
    def greedy(self) -> bool:
        """Whether the best token is always taken, so that nothing is drawn."""
        return self.temperature < GREEDY_TEMPERATURE or self.top_k == 1 or self.top_p == 0.0

    @property
    def stop_strings(self) -> tuple[str, ...]:
        return self.stop  # type: ignore[return-value]  # normalized by __post_init__

    def validate_for(self, vocab_size: int) -> None:
        """Checks what depends on the model: every token id named must be below vocab_size."""
        for token_id in self.logit_bias or ():
            if token_id >= vocab_size:
                raise ValueError(f"logit_bias names token {token_id}, but the vocabulary has {vocab_size} tokens")
        for token_id in self.stop_token_ids or ():
            if token_id >= vocab_size:
                raise ValueError(f"stop_token_ids names token {token_id}, but the vocabulary has {vocab_size} tokens")


def show(value: object) -> str:
    """A short repr for messages: any value, whatever its size."""
    if isinstance(value, int) and value.bit_length() > 128:
        return f"an integer of {value.bit_length()} bits"  # Python refuses to print integers of many digits
    try:
        text = repr(value)
    except ValueError:  # such an integer inside a list
        return f"a {type(value).__name__}"
    return text if len(text) <= 100 else f"{text[:97]}..."


def _integer(name: str, value: object, low: int, high: int = MAX_INT) -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise ValueError(f"{name} must be an integer, got {show(value)}")
    value = int(value)
    if value < low:
        raise ValueError(f"{name} must be at least {low}, got {show(value)}")
    if value > high:
        raise ValueError(f"{name} must be at most {high}, got {show(value)}")
    return value


def _number(name: str, value: object, low: float, high: float = math.inf) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ValueError(f"{name} must be a number, got {show(value)}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"{name} must be finite, got {show(value)}")
    if number < low:
        raise ValueError(f"{name} must be at least {low:g}, got {show(value)}")
    if number > high:
        raise ValueError(f"{name} must be at most {high:g}, got {show(value)}")
    return number


def _logit_bias(value: object) -> dict[int, float]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ValueError(f"logit_bias must map token ids to numbers, got {show(value)}")
    if len(value) > MAX_LOGIT_BIAS:
        raise ValueError(f"logit_bias may have at most {MAX_LOGIT_BIAS} entries, got {len(value)}")
    bias: dict[int, float] = {}
    for key, number in value.items():
        # JSON has only strings for keys.
        digits = isinstance(key, str) and len(key) <= 10 and key.isascii() and key.isdigit()
        token_id = _integer("logit_bias: token id", int(key) if digits else key, 0)
        bias[token_id] = _number(f"logit_bias[{token_id}]", number, -100.0, 100.0)
    return bias


def _stop_strings(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, str):
        value = (value,)
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"stop must be a string or a list of strings, got {show(value)}")
    if len(value) > MAX_STOP_STRINGS:
        raise ValueError(f"stop may have at most {MAX_STOP_STRINGS} strings, got {len(value)}")
    for stop in value:
        if not isinstance(stop, str):
            raise ValueError(f"stop must hold strings, got {show(stop)}")
        if not stop:
            raise ValueError("stop must not hold an empty string, got ''")
        if len(stop) > MAX_STOP_LENGTH:
            raise ValueError(f"stop: a string may have at most {MAX_STOP_LENGTH} characters, got {len(stop)}")
        if any("\ud800" <= character <= "\udfff" for character in stop):
            raise ValueError(f"stop must be valid Unicode, got {show(stop)}")
    return tuple(value)


def _stop_token_ids(value: object) -> tuple[int, ...]:
    if value is None:
        return ()
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"stop_token_ids must be a list of integers, got {show(value)}")
    if len(value) > MAX_STOP_TOKEN_IDS:
        raise ValueError(f"stop_token_ids may have at most {MAX_STOP_TOKEN_IDS} entries, got {len(value)}")
    return tuple(_integer("stop_token_ids", token_id, 0) for token_id in value)
