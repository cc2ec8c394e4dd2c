"""What a caller may ask of sampling, checked field by field."""

from __future__ import annotations

import json
import math
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cudaprefill.text.regex_limits import refuse_explosive_regex

MAX_N = 128
MAX_STOP_STRINGS = 16
MAX_STOP_LENGTH = 1024  # characters
MAX_STOP_TOKEN_IDS = 256
MAX_LOGIT_BIAS = 1024
MAX_LOGPROBS = 20
MAX_SCHEMA_LENGTH = 1 << 16  # characters
MAX_SCHEMA_DEPTH = 64
MAX_REGEX_LENGTH = 1 << 12
MAX_GRAMMAR_LENGTH = 1 << 14
MAX_CHOICES = 1024
MAX_CHOICES_LENGTH = 1 << 15  # characters of all together
MAX_INT = 2**31 - 1

# Below this temperature a softmax in float32 says no more than the argmax does.
GREEDY_TEMPERATURE = 1e-5


@dataclass(frozen=True, kw_only=True)
class StructuredOutputsParams:
    """What the text of an output must follow. Names are vLLM's; exactly one of the five is given.

    A ValueError names the field. Sizes are bounded so that no request can hold up the others while its grammar is
    compiled or followed; what a grammar means is xgrammar's to judge, when the request comes to an engine.

    json: a JSON schema, as text or as the object it describes; at most 65,536 characters and 64 levels.
    regex: the whole text matches it; at most 4,096 characters. Look-around, back references, Unicode classes and flags
        are not supported. Counts that multiply to more than 10,000, as in (a{1000}){1000}, and a count of what
        may be empty, as in (a?){9}, are refused, and so are more than 128 parts that may be empty, here and in a
        schema's patterns.
    grammar: EBNF with a rule named root, in the notation of llama.cpp's GBNF; at most 16,384 characters.
    choice: the text is one of these.
    json_object: any JSON object.
    """

    json: str | Mapping[str, object] | None = None
    regex: str | None = None
    grammar: str | None = None
    choice: Sequence[str] | None = None
    json_object: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.json_object, bool):
            raise ValueError(f"json_object must be true or false, got {show(self.json_object)}")
        given = [name for name in ("json", "regex", "grammar", "choice") if getattr(self, name) is not None]
        given += ["json_object"] * self.json_object
        if len(given) != 1:
            raise ValueError(
                "structured_outputs needs exactly one of json, regex, grammar, choice and json_object, "
                f"got {' and '.join(given) or 'none'}"
            )
        if self.json is not None:
            object.__setattr__(self, "json", _schema_text(self.json))
        if self.regex is not None:
            refuse_explosive_regex("regex", _bounded_text("regex", self.regex, MAX_REGEX_LENGTH))
        if self.grammar is not None:
            _bounded_text("grammar", self.grammar, MAX_GRAMMAR_LENGTH)
        if self.choice is not None:
            object.__setattr__(self, "choice", _choices(self.choice))


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
    prompt_logprobs: the same for each token of the prompt but the first. Such a request takes no prefix hits.
    structured_outputs: a grammar that the text follows. The output ends ("stop") when the grammar is complete and EOS
        is drawn, even with ignore_eos. min_tokens keeps EOS back only while the grammar allows another token. A stop
        string or stop token, and max_tokens, may end the text before the grammar is complete.
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
    prompt_logprobs: int | None = None
    structured_outputs: StructuredOutputsParams | None = None
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
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                self._set(name, _integer(name, getattr(self, name), 0, MAX_LOGPROBS))
        if not isinstance(self.structured_outputs, (StructuredOutputsParams, type(None))):
            raise ValueError(
                f"structured_outputs must be StructuredOutputsParams, got {type(self.structured_outputs).__name__}"
            )
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
        _check_unicode("stop", stop)
    return tuple(value)


def _stop_token_ids(value: object) -> tuple[int, ...]:
    if value is None:
        return ()
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"stop_token_ids must be a list of integers, got {show(value)}")
    if len(value) > MAX_STOP_TOKEN_IDS:
        raise ValueError(f"stop_token_ids may have at most {MAX_STOP_TOKEN_IDS} entries, got {len(value)}")
    return tuple(_integer("stop_token_ids", token_id, 0) for token_id in value)


def _check_unicode(name: str, text: str) -> None:
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError(f"{name} must be valid Unicode, got {show(text)}")


def _bounded_text(name: str, value: object, max_length: int) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name} must be a string, got {show(value)}")
    if len(value) > max_length:
        raise ValueError(f"{name} may have at most {max_length} characters, got {len(value)}")
    _check_unicode(name, value)
    return value


def _schema_text(value: object) -> str:
    """A JSON schema as text, after its size, its depth and its patterns were looked at."""
    if not isinstance(value, (str, Mapping)):
        raise ValueError(f"json must be a JSON schema, as text or as a dict, got {type(value).__name__}")
    try:
        text = value if isinstance(value, str) else json.dumps(value, allow_nan=False)
        schema = json.loads(text) if len(text) <= MAX_SCHEMA_LENGTH else None
    except RecursionError:
        raise ValueError(f"json may have at most {MAX_SCHEMA_DEPTH} levels, got more") from None
    except (TypeError, ValueError) as error:
        raise ValueError(f"json is not a JSON schema: {error}") from None
    _bounded_text("json", text, MAX_SCHEMA_LENGTH)
    level, depth = [schema], 0
    while level:
        depth += 1
        if depth > MAX_SCHEMA_DEPTH:
            raise ValueError(f"json may have at most {MAX_SCHEMA_DEPTH} levels, got more")
        below: list[object] = []
        for node in level:
            if isinstance(node, dict):
                _check_patterns(node)
                _check_reference(node)
                below += node.values()
            elif isinstance(node, list):
                below += node
        level = below
    return text


def _check_patterns(schema: dict[str, object]) -> None:
    patterns = [schema.get("pattern"), *_keys(schema.get("patternProperties"))]
    for pattern in patterns:
        if isinstance(pattern, str):
            refuse_explosive_regex("json: pattern", _bounded_text("json: pattern", pattern, MAX_REGEX_LENGTH))


def _check_reference(schema: dict[str, object]) -> None:
    """xgrammar lets anything pass in the place of a schema that it would have to look for elsewhere."""
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference != "#" and not reference.startswith("#/"):
        raise ValueError(f"json: $ref must begin with #/ and stay in the schema, got {show(reference)}")


def _keys(value: object) -> list[object]:
    return list(value) if isinstance(value, dict) else []


def _choices(value: object) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"choice must be a list of strings, got {show(value)}")
    if not 0 < len(value) <= MAX_CHOICES:
        raise ValueError(f"choice must have 1 to {MAX_CHOICES} strings, got {len(value)}")
    texts = tuple(_bounded_text("choice", text, MAX_CHOICES_LENGTH) for text in value)
    if sum(map(len, texts)) > MAX_CHOICES_LENGTH:
        raise ValueError(f"choice may have at most {MAX_CHOICES_LENGTH} characters in all, got {sum(map(len, texts))}")
    return texts
