"""SamplingParams takes what makes sense and refuses the rest with the field's name and the value."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from cudaprefill.sampling_params import MAX_LOGIT_BIAS, MAX_STOP_STRINGS, SamplingParams

NUMBERS = [
    "temperature",
    "top_p",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
]
INTEGERS = ["n", "top_k", "seed", "max_tokens", "min_tokens", "logprobs", "prompt_logprobs"]
FLAGS = ["ignore_eos", "include_stop_str_in_output", "skip_special_tokens", "detokenize"]


def refusal(**fields: Any) -> str:
    with pytest.raises(ValueError, match=next(iter(fields))) as error:
        SamplingParams(**fields)
    message = str(error.value)
    assert json.loads(json.dumps(message)) == message
    message.encode()  # no lone surrogate leaks into the answer
    return message


def test_defaults_are_those_of_vllm() -> None:
    params = SamplingParams()
    assert (params.n, params.temperature, params.top_p, params.top_k, params.min_p) == (1, 1.0, 1.0, 0, 0.0)
    assert (params.presence_penalty, params.frequency_penalty, params.repetition_penalty) == (0.0, 0.0, 1.0)
    assert (params.seed, params.logprobs, params.max_tokens, params.min_tokens) == (None, None, 16, 0)
    assert (params.stop_strings, params.stop_token_ids, params.logit_bias) == ((), (), {})
    assert (params.ignore_eos, params.include_stop_str_in_output) == (False, False)
    assert (params.skip_special_tokens, params.detokenize) == (True, True)


@pytest.mark.parametrize("name", NUMBERS + INTEGERS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, float("1e999"), "nan", "1", True, False, [1], {}, 1j])
def test_what_is_not_a_finite_number_is_refused_by_every_numeric_field(name: str, value: object) -> None:
    message = refusal(**{name: value})
    assert repr(value) in message


@pytest.mark.parametrize("name", NUMBERS + INTEGERS)
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("digits", [400, 10_000])
def test_huge_integers_are_refused_with_a_message_that_can_be_printed(name: str, sign: int, digits: int) -> None:
    assert "bits" in refusal(**{name: sign * 10**digits})


@pytest.mark.parametrize("name", [name for name in NUMBERS + INTEGERS if name not in ("top_k", "presence_penalty")])
def test_minus_one_is_refused_where_it_means_nothing(name: str) -> None:
    if name == "frequency_penalty":
        assert SamplingParams(frequency_penalty=-1).frequency_penalty == -1.0
    else:
        assert "-1" in refusal(**{name: -1})


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_are_not_taken_from_fractions(name: str) -> None:
    assert "1.5" in refusal(**{name: 1.5})


@pytest.mark.parametrize("name", FLAGS)
@pytest.mark.parametrize("value", [1, 0, "true", None, math.nan])
def test_flags_are_true_or_false(name: str, value: object) -> None:
    assert repr(value) in refusal(**{name: value})


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"n": 0}, "at least 1"),
        ({"n": 129}, "at most 128"),
        ({"max_tokens": 0}, "at least 1, got 0"),
        ({"top_p": 1.01}, "at most 1"),
        ({"min_p": 1.01}, "at most 1"),
        ({"top_k": -2}, "at least -1"),
        ({"presence_penalty": 2.01}, "at most 2"),
        ({"frequency_penalty": -2.01}, "at least -2"),
        ({"repetition_penalty": 0}, "at least 0.01"),
        ({"logprobs": 21}, "at most 20"),
        ({"prompt_logprobs": 21}, "prompt_logprobs must be at most 20"),
        ({"prompt_logprobs": -1}, "prompt_logprobs must be at least 0"),
        ({"seed": 2**64}, "at most 18446744073709551615"),
    ],
)
def test_what_is_out_of_range_is_refused_with_the_limit(fields: dict[str, Any], part: str) -> None:
    assert part in refusal(**fields)


def test_min_tokens_above_max_tokens_is_refused_with_both_numbers() -> None:
    message = refusal(min_tokens=17, max_tokens=16)
    assert "17" in message
    assert "16" in message
    assert SamplingParams(min_tokens=16, max_tokens=16).min_tokens == 16
    assert SamplingParams(min_tokens=1000, max_tokens=None).max_tokens is None


@pytest.mark.parametrize(
    "stop", ["", ["a", ""], ["a", 1], [None], 5, True, {"a"}, "\ud800", ["ok", "a\udfffb"], ["a"] * 17, "x" * 1025]
)
def test_stop_strings_that_cannot_be_matched_are_refused(stop: Any) -> None:
    refusal(stop=stop)


def test_stop_strings_become_a_tuple() -> None:
    assert SamplingParams(stop="ab").stop_strings == ("ab",)
    assert SamplingParams(stop=["ab", "c"]).stop_strings == ("ab", "c")
    assert SamplingParams(stop=[]).stop_strings == ()
    assert len(SamplingParams(stop=["a"] * MAX_STOP_STRINGS).stop_strings) == MAX_STOP_STRINGS


def test_stop_strings_need_text() -> None:
    assert "detokenize" in refusal(stop="a", detokenize=False)


@pytest.mark.parametrize("ids", [5, "5", [1.0], [True], [-1], ["1"], [10**400], [0] * 257, [math.nan]])
def test_stop_token_ids_that_name_no_token_are_refused(ids: Any) -> None:
    refusal(stop_token_ids=ids)


@pytest.mark.parametrize(
    "bias",
    [
        5,
        [1],
        {-1: 1.0},
        {1.5: 1.0},
        {True: 1.0},
        {"x": 1.0},
        {"-1": 1.0},
        {"²": 1.0},
        {1: math.nan},
        {1: math.inf},
        {1: "1"},
        {1: True},
        {1: 100.5},
        {1: 10**400},
        {10**400: 1},
    ],
)
def test_biases_that_are_not_numbers_of_tokens_are_refused(bias: Any) -> None:
    refusal(logit_bias=bias)


def test_too_many_biases_are_refused_with_the_limit() -> None:
    full = dict.fromkeys(range(MAX_LOGIT_BIAS), 1.0)
    assert len(SamplingParams(logit_bias=full).logit_bias or {}) == MAX_LOGIT_BIAS
    assert str(MAX_LOGIT_BIAS) in refusal(logit_bias={**full, MAX_LOGIT_BIAS: 1.0})


def test_bias_keys_may_be_the_strings_of_a_json_object() -> None:
    assert SamplingParams(logit_bias={"50": -100, 7: 1}).logit_bias == {50: -100.0, 7: 1.0}


def test_token_ids_are_checked_against_the_vocabulary() -> None:
    SamplingParams(logit_bias={99: 1.0}, stop_token_ids=[99]).validate_for(100)
    for fields in ({"logit_bias": {100: 1.0}}, {"stop_token_ids": [100]}):
        params = SamplingParams(**fields)
        with pytest.raises(ValueError, match=rf"{next(iter(fields))} names token 100, .* 100 tokens"):
            params.validate_for(100)


def test_numbers_of_numpy_are_numbers() -> None:
    params = SamplingParams(temperature=np.float32(0.5), top_k=np.int64(5))
    assert (params.temperature, params.top_k) == (0.5, 5)
    assert type(params.top_k) is int


@pytest.mark.parametrize("fields", [{"temperature": 0}, {"temperature": 1e-6}, {"top_k": 1}, {"top_p": 0}])
def test_what_leaves_only_the_best_token_is_greedy(fields: dict[str, Any]) -> None:
    assert SamplingParams(**fields).greedy
    assert not SamplingParams().greedy
