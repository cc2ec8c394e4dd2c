"""Prompt tuning, P-tuning and prefix tuning give PEFT's logits, however their requests are computed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from cudaprefill.engine.request import Request
from cudaprefill.sampling_params import SamplingParams
from tests.adapters.case import TEXT, Case, ask_all, make_case
from tests.adapters.peft_adapters import CONFIGS
from tests.adapters.recording import assert_equal_logits
from tests.models.tiny import reference_logits

# The last one sees fewer keys than there are virtual tokens.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {}),
    "mistral": ("mistral", {"sliding_window": 24}),
    "gemma2": ("gemma2", {}),
    "gemma3": ("gemma3_text", {}),
    "phi3": ("phi3", {}),
}


@pytest.fixture(scope="module", params=MODELS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    family, overrides = MODELS[request.param]
    return make_case(tmp_path_factory.mktemp(family), family, CONFIGS, **overrides)


@pytest.mark.parametrize("name", CONFIGS)
def test_alone(case: Case, name: str) -> None:
    engine = case.engine()
    engine.ask("alone", TEXT, name)
    engine.run()
    assert_equal_logits(engine, case.expected)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_text_of_one_token(case: Case, name: str) -> None:
    engine = case.engine()
    engine.ask("short", TEXT[:1], name)
    engine.run()
    assert_equal_logits(engine, case.expected)


def test_mixed_in_one_batch(case: Case) -> None:
    engine = case.engine()
    ask_all(engine)
    engine.run()
    assert_equal_logits(engine, case.expected)


@pytest.mark.parametrize("budget", [1, 7, 17, 48])
def test_chunked(case: Case, budget: int) -> None:
    engine = case.engine(budget=budget)
    ask_all(engine)
    engine.run()
    assert_equal_logits(engine, case.expected)


def test_cached(case: Case) -> None:
    engine = case.engine(budget=48)
    first = ask_all(engine)
    engine.run()
    second = ask_all(engine, 1)
    engine.run()
    assert_equal_logits(engine, case.expected)
    assert all(request.num_hit_tokens == 0 for request in first.values())
    for request in second.values():
        assert request.num_hit_tokens == (request.prompt_length - 1) // 16 * 16


def test_the_virtual_tokens_are_found_by_another_text(case: Case) -> None:
    engine = case.engine()
    ask_all(engine)
    engine.run()
    for name in engine.adapters.names:
        request = engine.ask(f"other {name}", [token + 1 for token in TEXT], name)
        engine.run()
        assert request.num_hit_tokens == request.virtual_tokens.num_tokens // 16 * 16
    assert_equal_logits(engine, case.expected)


@pytest.mark.parametrize("caching", [False, True])
def test_preempted(case: Case, caching: bool) -> None:
    engine = case.engine(num_blocks=12, budget=40, caching=caching)
    requests = ask_all(engine, params=SamplingParams(temperature=0, max_tokens=40, ignore_eos=True))
    engine.run()
    assert sum(request.num_preemptions for request in requests.values()) >= 1
    assert_equal_logits(engine, case.expected)


@pytest.mark.parametrize("name", CONFIGS)
def test_evicted(case: Case, name: str) -> None:
    """The blocks of the virtual tokens give way, and come back when they are wanted again."""
    engine = case.engine(num_blocks=6)
    for round_ in range(2):
        request = engine.ask(f"{round_} with", TEXT[:20], name)
        engine.run()
        assert request.num_hit_tokens == 0
        engine.ask(f"{round_} without", [round_ + 1] * 87)
        engine.run()
    assert_equal_logits(engine, case.expected)


@pytest.mark.parametrize("name", CONFIGS)
def test_siblings_copy_what_they_write_into(case: Case, name: str) -> None:
    engine = case.engine()
    params = SamplingParams(n=3, temperature=1.0, seed=1, max_tokens=20, ignore_eos=True, detokenize=False)
    engine.ask("siblings", TEXT[:3], name, params=params)
    engine.run()
    assert_equal_logits(engine, case.expected)


@pytest.mark.parametrize("name", [name for name in CONFIGS if name.startswith("prefix")])
def test_given_keys_and_values_take_nothing_of_the_budget(case: Case, name: str) -> None:
    engine = case.engine(budget=len(TEXT))
    request = engine.ask("alone", TEXT, name)
    engine.step()
    assert request.num_output_tokens == 1
    engine.run()


@pytest.mark.parametrize("budget", [7, 512])
def test_log_probabilities_of_the_prompt_are_those_of_its_text(case: Case, budget: int) -> None:
    engine = case.engine(budget=budget)
    params = SamplingParams(temperature=0, max_tokens=2, prompt_logprobs=0, detokenize=False)
    requests = ask_all(engine, params=params)
    deltas = [delta for _ in iter(engine.has_work, False) for delta in engine.step()]
    for request in requests.values():
        told = next(d.prompt_logprobs for d in deltas if d.request_id == request.request_id and d.prompt_logprobs)
        expected = case.expected(request, TEXT).log_softmax(-1)
        assert told[0] is None
        assert len(told) == len(TEXT)
        for place, logprobs in enumerate(told[1:], 1):
            assert logprobs is not None
            assert abs(logprobs[TEXT[place]].logprob - float(expected[place - 1, TEXT[place]])) < 1e-4


@torch.inference_mode()
def test_prompt_embeds_are_as_good_as_the_tokens(case: Case) -> None:
    engine = case.engine(budget=17)
    rows = case.base.get_input_embeddings()(torch.tensor(TEXT))
    alone = engine.ask("alone", {"prompt_embeds": rows})
    mixed = engine.ask("mixed", {"prompt_embeds": rows[:21], "prompt_token_ids": TEXT[21:]})
    behind = engine.ask("behind", {"prompt_embeds": rows[:5], "prompt_token_ids": TEXT[5:]}, "prompt tuning")
    engine.run()
    cached = engine.ask("cached", {"prompt_embeds": rows})
    engine.run()
    assert cached.num_hit_tokens == 32

    def expected(request: Request, token_ids: list[int]) -> Tensor:
        given = request.virtual_tokens.num_tokens - (20 if request.adapter else 0)
        return case.expected(request, TEXT[:given] + token_ids)[given:]

    assert behind.virtual_tokens.num_tokens == 25
    assert alone.output_token_ids == mixed.output_token_ids
    # Of prompts without a text, the first output comes from the last embedding.
    texts = [seen for seen in engine.seen if seen[0].prompt_token_ids]
    engine.seen, of_alone = texts, [row for request, _, row in engine.seen if request is alone]
    assert_equal_logits(engine, expected)
    whole = reference_logits(case.base, TEXT + alone.output_token_ids)[len(TEXT) - 1 : -1]
    assert (torch.stack(of_alone) - whole).abs().max() < 1e-4
