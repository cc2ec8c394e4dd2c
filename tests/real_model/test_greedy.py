"""Greedy tokens on real text are those of transformers."""

from __future__ import annotations

from pydoc_data.topics import topics
from typing import Any

import pytest
import torch

from cudaprefill import LLM, SamplingParams

NUM_PROMPTS = 200
NUM_TOKENS = 64
NEAR_TIE = 1e-4
REFERENCE_BATCH = 8


def real_prompts() -> list[str]:
    """Paragraphs of the Python manual, which comes with every Python."""
    paragraphs = (text.strip() for topic in sorted(topics) for text in topics[topic].split("\n\n"))
    return [text[:500] for text in paragraphs if len(text) > 120][: 3 * NUM_PROMPTS : 3]


@torch.inference_mode()
def reference_logits(model: Any, sequences: list[list[int]]) -> list[torch.Tensor]:
    """Of each sequence: [tokens, V]. Padding stands behind and, attention being causal, changes nothing before it."""
    longest = max(map(len, sequences))
    padded = torch.tensor([sequence + [0] * (longest - len(sequence)) for sequence in sequences])
    logits = model(padded).logits
    return [row[: len(sequence)] for row, sequence in zip(logits, sequences, strict=True)]


@pytest.mark.slow
def test_two_hundred_prompts_continue_token_for_token_as_in_transformers(llm: LLM, reference: Any) -> None:
    """Every token must be the reference's best one after the same tokens, or tie with it within 1e-4."""
    prompts = real_prompts()
    assert len(prompts) == NUM_PROMPTS
    outputs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=NUM_TOKENS))
    outputs.sort(key=lambda output: len(output.prompt_token_ids))
    num_tokens = near_ties = 0
    for start in range(0, NUM_PROMPTS, REFERENCE_BATCH):
        batch = outputs[start : start + REFERENCE_BATCH]
        sequences = [output.prompt_token_ids + output.outputs[0].token_ids for output in batch]
        for output, logits in zip(batch, reference_logits(reference, sequences), strict=True):
            tokens = torch.tensor(output.outputs[0].token_ids)
            rows = logits[len(output.prompt_token_ids) - 1 : -1]
            behind = rows.max(-1).values - rows.gather(-1, tokens[:, None])[:, 0]
            assert behind.max() <= NEAR_TIE, f"{output.prompt!r}: {behind.max():.2e} behind the best token"
            num_tokens += len(tokens)
            near_ties += int((behind > 0).sum())
    print(f"{num_tokens} tokens, {near_ties} of them near ties")
    assert num_tokens > NUM_PROMPTS * NUM_TOKENS * 0.8
    assert near_ties <= num_tokens // 1000


def assert_knows_the_capital_of_france(llm: LLM) -> None:
    question = [{"role": "user", "content": "What is the capital of France?"}]
    output = llm.chat(question, SamplingParams(temperature=0, max_tokens=None))[0].outputs[0]
    assert (output.text, output.finish_reason) == ("The capital of France is Paris.", "stop")


def test_the_answer_about_france(llm: LLM) -> None:
    assert_knows_the_capital_of_france(llm)


def test_activations_of_16_bits_are_the_default_and_give_the_same_answer() -> None:
    with LLM(kv_cache_memory=64 * 2**20) as llm:
        assert llm.info.linear_math == "int16"
        assert_knows_the_capital_of_france(llm)


def test_a_cached_prefix_changes_no_token(llm: LLM) -> None:
    prefix = "\n".join(real_prompts()[:12])
    params = SamplingParams(temperature=0, max_tokens=24)
    questions = [f"{prefix}\nSummary {number}:" for number in range(3)]
    llm.reset_prefix_cache()
    cold = [llm.generate(question, params)[0] for question in questions]
    llm.reset_prefix_cache()
    solo = []
    for question in questions:
        llm.reset_prefix_cache()
        solo += llm.generate(question, params)
    assert [output.outputs[0].token_ids for output in cold] == [output.outputs[0].token_ids for output in solo]
    hits = [output.metrics.num_cached_tokens for output in cold if output.metrics]
    assert hits[0] == 0
    assert min(hits[1:]) > 0.95 * len(llm.tokenizer.encode(prefix))
