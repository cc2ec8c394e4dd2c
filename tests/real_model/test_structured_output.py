"""Grammars and prompt log-probabilities on the real model and its vocabulary."""

from __future__ import annotations

import json
import re

import pytest
import torch
from transformers import PreTrainedModel

from cudaprefill import LLM, SamplingParams, StructuredOutputsParams
from cudaprefill.text.token_bytes import text_loses_first_space, token_bytes

pytest.importorskip("xgrammar")

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer"},
        "alive": {"type": "boolean"},
    },
    "required": ["name", "age", "alive"],
    "additionalProperties": False,
}
ASK = [{"role": "user", "content": "Describe a person in JSON."}]


def test_texts_follow_their_grammars_side_by_side(llm: LLM) -> None:
    grammars = [
        StructuredOutputsParams(json=PERSON),
        StructuredOutputsParams(regex=r"\d{4}-\d\d-\d\d"),
        StructuredOutputsParams(choice=["positive", "negative"]),
    ]
    params = [SamplingParams(structured_outputs=each, n=2, seed=1, max_tokens=60) for each in grammars]
    person, date, mood, free = llm.chat([ASK] * 4, [*params, SamplingParams(temperature=0, max_tokens=8)])
    for output in person.outputs:
        if output.finish_reason == "stop":
            value = json.loads(output.text)
            assert set(value) == {"name", "age", "alive"}
            assert len(value["name"]) <= 12
    for output in date.outputs:
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", output.text)
    assert {output.text for output in mood.outputs} <= {"positive", "negative"}
    assert {output.finish_reason for output in (*date.outputs, *mood.outputs)} == {"stop"}
    alone = llm.chat([ASK], SamplingParams(temperature=0, max_tokens=8))[0]
    assert free.outputs[0].token_ids == alone.outputs[0].token_ids


def test_the_bytes_of_the_vocabulary_join_to_what_is_decoded(llm: LLM) -> None:
    tokens = token_bytes(llm.tokenizer, llm.tokenizer.vocab_size)
    assert not text_loses_first_space(llm.tokenizer, tokens)
    generator = torch.Generator().manual_seed(0)
    texts = [token_id for token_id, part in enumerate(tokens) if part]
    for _ in range(50):
        token_ids = [texts[i] for i in torch.randint(len(texts), (200,), generator=generator).tolist()]
        joined = b"".join(tokens[token_id] for token_id in token_ids)
        assert llm.tokenizer.decode(token_ids) == joined.decode("utf-8", "replace")


def test_log_probabilities_of_a_prompt_are_those_of_transformers(llm: LLM, reference: PreTrainedModel) -> None:
    prompt = "The capital of France is Paris, and the capital of Italy is Rome."
    output = llm.generate(prompt, SamplingParams(prompt_logprobs=1, max_tokens=1))[0]
    token_ids = output.prompt_token_ids
    with torch.inference_mode():
        expected = reference(torch.tensor([token_ids])).logits[0].log_softmax(-1)
    assert output.prompt_logprobs is not None
    assert output.prompt_logprobs[0] is None
    for position, of_token in enumerate(output.prompt_logprobs[1:], 1):
        assert of_token is not None
        token_id = token_ids[position]
        assert of_token[token_id].logprob == pytest.approx(float(expected[position - 1, token_id]), abs=0.1)
