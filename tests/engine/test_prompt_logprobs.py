"""Log-probabilities of a prompt are those of transformers in float64, however the prompt is computed."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from cudaprefill.engine import passes
from cudaprefill.engine.engine import Engine
from cudaprefill.engine.output_delta import OutputDelta
from cudaprefill.engine.request import Request
from cudaprefill.models import Decoder, load_model
from cudaprefill.outputs import TokenLogprobs
from cudaprefill.sampling_params import SamplingParams
from tests.engine.harness import make_request, pool_is_idle, run_to_end, tokens_of
from tests.engine.test_equality import make_recording_engine
from tests.models.tiny import save_tiny_model

PROMPT = [(11 * token) % 47 + 1 for token in range(70)]
OTHER = [(5 * token) % 43 + 1 for token in range(90)]
PARAMS = SamplingParams(prompt_logprobs=5, temperature=0, max_tokens=6, ignore_eos=True)
PLAIN = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=2)


@pytest.fixture(scope="module")
def model_and_exact(tmp_path_factory: pytest.TempPathFactory) -> tuple[Decoder, Any]:
    folder: Path = tmp_path_factory.mktemp("qwen3")
    reference = save_tiny_model(folder, "qwen3")
    return load_model(folder), copy.deepcopy(reference).double()


def make_engine(model: Decoder, *, budget: int = 512, num_blocks: int = 64) -> Engine:
    return make_recording_engine(model, num_blocks=num_blocks, budget=budget, caching=True)[0]


def run(engine: Engine, *requests: Request) -> list[OutputDelta]:
    for request in requests:
        engine.submit(request)
    deltas = run_to_end(engine)
    assert pool_is_idle(engine)
    return deltas


def delivered(deltas: Sequence[OutputDelta], request_id: str = "r") -> list[TokenLogprobs | None]:
    """What came, once, with the first delta of the first output."""
    own = [delta for delta in deltas if (delta.request_id, delta.index) == (request_id, 0)]
    assert [delta.prompt_logprobs is not None for delta in own] == [True] + [False] * (len(own) - 1)
    assert own[0].prompt_logprobs is not None
    return own[0].prompt_logprobs


def assert_exact(exact: Any, found: Sequence[TokenLogprobs | None], prompt: Sequence[int], count: int = 5) -> None:
    with torch.inference_mode():
        expected = exact(torch.tensor([list(prompt)])).logits[0].log_softmax(-1)
    assert len(found) == len(prompt)
    assert found[0] is None
    for position in range(1, len(prompt)):
        row, of_token, token_id = expected[position - 1], found[position], prompt[position]
        assert of_token is not None
        assert next(iter(of_token)) == token_id
        assert set(of_token) == {token_id, *row.topk(count).indices.tolist()}
        for other_id, logprob in of_token.items():
            assert math.isclose(logprob.logprob, row[other_id], abs_tol=2e-5)
            assert logprob.rank == int((row > row[other_id]).sum()) + 1
            assert logprob.decoded_token is not None


@pytest.mark.parametrize("budget", [1, 7, 16, 17, 69, 70, 512])
def test_they_are_those_of_float64_for_every_token_budget(model_and_exact: tuple[Decoder, Any], budget: int) -> None:
    model, exact = model_and_exact
    assert_exact(exact, delivered(run(make_engine(model, budget=budget), make_request("r", PROMPT, PARAMS))), PROMPT)


def test_passes_of_few_rows_give_the_same(
    model_and_exact: tuple[Decoder, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, exact = model_and_exact
    monkeypatch.setattr(passes, "_CPU_PASS", 3 * model.config.vocab_size)
    assert_exact(exact, delivered(run(make_engine(model), make_request("r", PROMPT, PARAMS))), PROMPT)


@pytest.mark.parametrize("count", [0, 1, 20])
def test_as_many_are_told_as_asked_for(model_and_exact: tuple[Decoder, Any], count: int) -> None:
    model, exact = model_and_exact
    params = SamplingParams(prompt_logprobs=count, max_tokens=1)
    assert_exact(exact, delivered(run(make_engine(model), make_request("r", PROMPT, params))), PROMPT, count)


def test_a_prompt_of_one_token_has_none(model_and_exact: tuple[Decoder, Any]) -> None:
    model, _ = model_and_exact
    assert delivered(run(make_engine(model), make_request("r", [7], PARAMS))) == [None]


@pytest.mark.parametrize("budget", [13, 512])
def test_such_a_request_changes_nothing_for_others(model_and_exact: tuple[Decoder, Any], budget: int) -> None:
    model, exact = model_and_exact
    others = [make_request("a", OTHER, PLAIN), make_request("b", PROMPT[:9], PLAIN)]
    alone = run(make_engine(model, budget=budget), *others)
    others = [make_request("a", OTHER, PLAIN), make_request("b", PROMPT[:9], PLAIN)]
    together = run(make_engine(model, budget=budget), others[0], make_request("r", PROMPT, PARAMS), others[1])
    assert_exact(exact, delivered(together), PROMPT)
    for request_id in "ab":
        assert tokens_of(together, request_id) == tokens_of(alone, request_id)
        assert all(delta.prompt_logprobs is None for delta in together if delta.request_id == request_id)


def test_no_prefix_is_taken_from_the_cache(model_and_exact: tuple[Decoder, Any]) -> None:
    """Neither of a plain request with the same prompt nor of one that asked for the same."""
    model, exact = model_and_exact
    engine = make_engine(model)
    run(engine, make_request("plain", PROMPT, PLAIN))
    for request_id in ("r", "r"):
        request = make_request(request_id, PROMPT, PARAMS)
        assert_exact(exact, delivered(run(engine, request)), PROMPT)
        assert request.num_hit_tokens == 0
    cached = make_request("cached", PROMPT, PLAIN)
    run(engine, cached)
    assert cached.num_hit_tokens == 64


def test_they_survive_preemption(model_and_exact: tuple[Decoder, Any]) -> None:
    """The newest request is preempted in its decode, and when it comes back its prompt may be in the cache."""
    model, exact = model_and_exact
    engine = make_engine(model, num_blocks=12, budget=40)
    long = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    scored = SamplingParams(prompt_logprobs=5, temperature=0, max_tokens=40, ignore_eos=True)
    requests = [
        make_request("a", OTHER[:60], long),
        make_request("r", PROMPT, scored),
        make_request("b", OTHER, scored),
    ]
    deltas = run(engine, *requests)
    assert sum(request.num_preemptions for request in requests[1:]) > 0
    assert_exact(exact, delivered(deltas), PROMPT)
    assert_exact(exact, delivered(deltas, "b"), OTHER)


def test_several_outputs_of_one_prompt_tell_them_once(model_and_exact: tuple[Decoder, Any]) -> None:
    model, exact = model_and_exact
    params = SamplingParams(prompt_logprobs=5, n=3, seed=0, max_tokens=4, ignore_eos=True)
    deltas = run(make_engine(model, budget=16), make_request("r", PROMPT, params))
    assert_exact(exact, delivered(deltas), PROMPT)
    assert all(delta.prompt_logprobs is None for delta in deltas if delta.index > 0)


def test_a_client_finds_them_in_the_output(tmp_path: Path) -> None:
    from cudaprefill.engine.request_stream import RequestStream

    save_tiny_model(tmp_path, "llama")
    engine = make_engine(load_model(tmp_path))
    request = make_request("r", PROMPT, PARAMS)
    stream = RequestStream(request, None, lambda: None)
    stream.deliver(run(engine, request))
    output = stream.wait()
    assert output.prompt_logprobs is not None
    assert len(output.prompt_logprobs) == len(PROMPT)
    merged = OutputDelta.merged([OutputDelta("r", 0, [1], prompt_logprobs=output.prompt_logprobs), OutputDelta("r", 0)])
    assert merged.prompt_logprobs == output.prompt_logprobs
    assert merged.size > OutputDelta("r", 0, [1]).size
