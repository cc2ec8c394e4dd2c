"""What a caller may say, and that everything else is refused by its name before the engine hears of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from cudaprefill.sampling_params import SamplingParams
from tests.engine.harness import GREEDY, MAX_MODEL_LEN, make_input_processor


def process(prompt: Any, params: Any = GREEDY, request_id: Any = "r", **options: Any) -> list[int]:
    request, _ = make_input_processor().process_prompt(request_id, prompt, params, **options)
    return list(request.prompt_token_ids)


@pytest.mark.parametrize(
    "prompt",
    [
        [1, 2, 3],
        (1, 2, 3),
        range(1, 4),
        [np.int64(1), np.int32(2), 3],
        np.array([1, 2, 3], np.int16),
        torch.tensor([1, 2, 3]),
        {"prompt_token_ids": np.array([1, 2, 3])},
    ],
)
def test_token_ids_come_in_many_shapes_and_leave_as_plain_integers(prompt: Any) -> None:
    token_ids = process(prompt)
    assert token_ids == [1, 2, 3]
    assert {type(token_id) for token_id in token_ids} == {int}


@pytest.mark.parametrize(
    ("prompt", "reason"),
    [
        (b"BC", "a prompt must be text or a list of token ids, got bytes"),
        (None, "got NoneType"),
        ({1, 2}, "got set"),
        ((token for token in [1]), "got generator"),
        (np.array(1), "got int"),
        (np.array([[1, 2]]), r"prompt token 0 must be an integer, got \[1, 2\]"),
        (np.array([1.0]), "prompt token 0 must be an integer, got 1.0"),
        ([10**5000], "prompt token 0 is an integer of 16610 bits"),
        ([], "the prompt has no tokens"),
        ({1: 2, "a": 3}, r"a prompt dict has prompt or prompt_token_ids.*\[1, 'a'\]"),
        ({"prompt": "A", "prompt_token_ids": [1]}, "a prompt dict has prompt or prompt_token_ids"),
        ({"prompt": "A", "cache_salt": 3}, "cache_salt must be a string that is not empty, got 3"),
        ({"prompt": "A", "cache_salt": "\ud800"}, "cache_salt must be valid Unicode"),
    ],
)
def test_what_is_no_prompt_is_refused_with_what_it_is(prompt: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        process(prompt)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"params": {"temperature": 0}}, "sampling_params must be SamplingParams, got dict"),
        ({"params": None}, "sampling_params must be SamplingParams, got NoneType"),
        # The queues compare priorities: one of another kind would end the engine, and with it everybody's requests.
        ({"priority": "high"}, "priority must be an integer, got 'high'"),
        ({"priority": float("nan")}, "priority must be an integer, got nan"),
        ({"priority": None}, "priority must be an integer, got None"),
        ({"request_id": 5}, "request_id must be a string that is not empty, got 5"),
        ({"request_id": ""}, "request_id must be a string that is not empty, got ''"),
    ],
)
def test_what_stands_beside_a_prompt_is_checked_as_well(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        process([1, 2, 3], **options)


def test_what_can_never_run_is_refused_here_already_with_both_numbers() -> None:
    assert len(process([1] * (MAX_MODEL_LEN - 1))) == MAX_MODEL_LEN - 1
    with pytest.raises(ValueError, match=r"512 tokens and leaves no room for an output: max_model_len is 512"):
        process([1] * MAX_MODEL_LEN)
    with pytest.raises(ValueError, match="n is 17, but max_num_seqs is 16"):
        process([1], SamplingParams(n=17))
    conversation = [{"role": "user", "content": "A" * 600}]
    with pytest.raises(ValueError, match=r"600 tokens.*max_model_len is 512"):
        make_input_processor().process_chat("r", conversation, GREEDY)
