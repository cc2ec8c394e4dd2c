"""Log-probabilities in the words of each endpoint."""

from __future__ import annotations

import json
import math

from cudaprefill.outputs import Logprob, TokenLogprobs
from cudaprefill.server.logprob_fields import CompletionLogprobs, chat_logprobs, prompt_logprobs

SKY: TokenLogprobs = {7: Logprob(-2.0, 3, " sky"), 5: Logprob(-0.5, 1, " sea"), 6: Logprob(-1.0, 2, " day")}
BLUE: TokenLogprobs = {9: Logprob(-0.1, 1, " blue")}
IMPOSSIBLE: TokenLogprobs = {1: Logprob(-math.inf, 50, "\ufffd")}


def test_a_sampled_token_that_is_not_among_the_best_is_told_beside_them() -> None:
    fields = CompletionLogprobs(2).take([SKY, BLUE])
    assert fields == {
        "tokens": [" sky", " blue"],
        "token_logprobs": [-2.0, -0.1],
        "top_logprobs": [{" sea": -0.5, " day": -1.0, " sky": -2.0}, {" blue": -0.1}],
        "text_offset": [0, 4],
    }
    chat = chat_logprobs([SKY], 2)
    assert chat == {
        "content": [
            {
                "token": " sky",
                "logprob": -2.0,
                "bytes": [32, 115, 107, 121],
                "top_logprobs": [
                    {"token": " sea", "logprob": -0.5, "bytes": [32, 115, 101, 97]},
                    {"token": " day", "logprob": -1.0, "bytes": [32, 100, 97, 121]},
                ],
            }
        ]
    }


def test_an_echoed_prompt_comes_first_and_its_first_token_has_no_probability() -> None:
    writer = CompletionLogprobs(1)
    first = writer.take([BLUE], [None, SKY], "The")
    assert first["tokens"] == ["The", " sky", " blue"]
    assert first["token_logprobs"] == [None, -2.0, -0.1]
    assert first["top_logprobs"] == [None, {" sea": -0.5, " sky": -2.0}, {" blue": -0.1}]
    assert first["text_offset"] == [0, 3, 7]
    assert writer.take([BLUE])["text_offset"] == [12]


def test_log_probabilities_of_a_prompt_are_by_token_id() -> None:
    first, second = prompt_logprobs([None, SKY])
    assert first is None
    assert second["7"] == {"logprob": -2.0, "rank": 3, "decoded_token": " sky"}  # type: ignore[index]


def test_a_token_that_cannot_be_is_still_valid_json() -> None:
    for fields in (
        chat_logprobs([IMPOSSIBLE], 1),
        CompletionLogprobs(1).take([IMPOSSIBLE]),
        prompt_logprobs([IMPOSSIBLE]),
    ):
        json.dumps(fields, allow_nan=False)
