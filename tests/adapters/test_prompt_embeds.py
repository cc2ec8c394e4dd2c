"""Embeddings as a prompt: what is refused, and that their content alone decides what they share."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from cudaprefill.adapters import AdapterRegistry
from cudaprefill.engine.request import Request
from tests.adapters.by_hand import MODEL, TARGET
from tests.engine.harness import GREEDY, VOCAB_SIZE, make_engine, make_input_processor, run_to_end

ROWS = torch.randn(40, MODEL.hidden_size, generator=torch.Generator().manual_seed(0))


def process(prompt: Any, request_id: str = "1") -> Request:
    return make_input_processor(AdapterRegistry(TARGET)).process_prompt(request_id, prompt, GREEDY)[0]


@pytest.mark.parametrize(
    ("prompt", "reason"),
    [
        ({"prompt_embeds": ROWS[:, :-1]}, r"must have the shape \[tokens, 96\], got \(40, 95\)"),
        ({"prompt_embeds": ROWS[0]}, r"must have the shape \[tokens, 96\], got \(96,\)"),
        ({"prompt_embeds": ROWS[None]}, r"must have the shape \[tokens, 96\], got \(1, 40, 96\)"),
        ({"prompt_embeds": ROWS[:0]}, r"must have the shape \[tokens, 96\], got \(0, 96\)"),
        ({"prompt_embeds": ROWS.long()}, "must be a tensor of floating-point numbers, got torch.int64"),
        ({"prompt_embeds": ROWS.numpy()}, "must be a tensor of floating-point numbers, got ndarray"),
        ({"prompt_embeds": None}, "must be a tensor of floating-point numbers, got NoneType"),
        ({"prompt_embeds": ROWS / 0}, "holds values that are not finite"),
        ({"prompt_embeds": torch.full((2, 96), torch.nan)}, "holds values that are not finite"),
        ({"prompt_embeds": torch.full((2, 96), 1e300, dtype=torch.float64)}, "holds values that are not finite"),
        ({"prompt_embeds": ROWS, "prompt": "A", "prompt_token_ids": [1]}, "a prompt dict has"),
        ({"prompt_embeds": ROWS, "text": "A"}, "a prompt dict has"),
        ({"prompt_embeds": ROWS, "prompt_token_ids": [VOCAB_SIZE]}, "prompt token 0 is 50"),
        ({"prompt_embeds": ROWS.to_sparse()}, "must be a dense tensor that has values, got a torch.sparse_coo one"),
        ({"prompt_embeds": ROWS.to("meta")}, "must be a dense tensor that has values, got a meta one"),
        ({"prompt_embeds": torch.nested.nested_tensor([ROWS])}, "must be a dense tensor .* got a nested one"),
        ({"prompt_embeds": ROWS[:1].expand(2**40, -1)}, "behind 1099511627776 virtual ones and leaves no room"),
        ({"prompt_embeds": ROWS.repeat(20, 1)}, "the prompt has 0 tokens behind 800 virtual ones and leaves no room"),
    ],
)
def test_what_is_refused(prompt: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        process(prompt)


def test_an_engine_without_a_model_takes_none() -> None:
    with pytest.raises(ValueError, match="this engine takes no prompt_embeds"):
        make_input_processor().process_prompt("1", {"prompt_embeds": ROWS}, GREEDY)


def test_they_stand_alone_or_in_front_of_a_text() -> None:
    for prompt, text in (({}, []), ({"prompt": "BC"}, [1, 2]), ({"prompt_token_ids": np.array([3, 4])}, [3, 4])):
        request = process({"prompt_embeds": ROWS, **prompt})
        assert request.prompt_token_ids == text
        assert request.prompt_positions == [*range(-1, -41, -1), *text]


def test_the_content_decides_what_is_shared() -> None:
    engine = make_engine()
    changed = ROWS.clone()
    hits = []
    for number, rows in enumerate((ROWS, ROWS.double(), ROWS + 0, changed.index_fill_(0, torch.tensor(39), 0.0))):
        request = process({"prompt_embeds": rows, "prompt_token_ids": [7] * 9}, str(number))
        engine.submit(request)
        run_to_end(engine)
        hits.append(request.num_hit_tokens)
    assert hits == [0, 48, 48, 0]


def test_a_tensor_may_change_once_it_is_taken() -> None:
    rows = ROWS.clone()
    request = process({"prompt_embeds": rows})
    rows.zero_()
    assert request.virtual_tokens.embeddings is not None
    assert torch.equal(request.virtual_tokens.embeddings, ROWS)
