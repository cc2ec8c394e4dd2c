"""Every kind of adapter in one batch, and embeddings in front of a text of each."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cudaprefill.engine.request import Request
from cudaprefill.sampling_params import SamplingParams
from tests.adapters import lora_adapters, peft_adapters
from tests.adapters.case import TEXT, Case, ask_all, make_case
from tests.adapters.recording import assert_equal_logits
from tests.ops.attention_reference import in_float8

CONFIGS = {
    **peft_adapters.CONFIGS,
    **{f"LoRA, {name}": lora_adapters.CONFIGS[name] for name in ("seven", "many ranks")},
}


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return make_case(tmp_path_factory.mktemp(request.param), request.param, CONFIGS)


@pytest.mark.parametrize("budget", [9, 64, 512])
def test_together(case: Case, budget: int) -> None:
    engine = case.engine(budget=budget)
    for round_ in range(2):
        ask_all(engine, round_)
        engine.run()
    assert_equal_logits(engine, case.expected)


def test_preempted(case: Case) -> None:
    engine = case.engine(num_blocks=12, budget=40)
    requests = ask_all(engine, params=SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, detokenize=False))
    engine.run()
    assert sum(request.num_preemptions for request in requests.values()) >= 1
    assert_equal_logits(engine, case.expected)


@torch.inference_mode()
def test_embeddings_behind_the_virtual_tokens_of_any_kind(case: Case) -> None:
    engine = case.engine(budget=30)
    rows = case.base.get_input_embeddings()(torch.tensor(TEXT))
    for name in (None, *CONFIGS):
        engine.ask(f"embedded {name}", {"prompt_embeds": rows[:21], "prompt_token_ids": TEXT[21:]}, name)
    engine.run()

    def expected(request: Request, token_ids: list[int]) -> Tensor:
        return case.expected(request, TEXT[:21] + token_ids)[21:]

    assert_equal_logits(engine, expected)


@pytest.mark.parametrize(
    ("kv_dtype", "tolerance"), [(torch.float16, 0.02), (torch.bfloat16, 0.15), (torch.float8_e4m3fn, 1.5)]
)
def test_a_kv_cache_of_another_dtype(case: Case, kv_dtype: torch.dtype, tolerance: float) -> None:
    """Its rounding costs a little precision, of given keys and values as of computed ones."""
    engine = case.engine(kv_dtype=kv_dtype)
    ask_all(engine)
    engine.run()
    assert_equal_logits(engine, case.expected, tolerance=tolerance)


def test_given_keys_and_values_are_divided_by_the_scales_of_a_float8_cache(case: Case) -> None:
    engine = case.engine(kv_dtype=torch.float8_e4m3fn)
    cache = engine.model_runner.kv_cache
    cache.scales.copy_(2.0 ** torch.arange(-3, cache.scales.numel() - 3).view(cache.scales.shape))
    request = engine.ask("alone", TEXT, "prefix tuning")
    given = request.virtual_tokens.keys_values
    assert given is not None
    engine.step()
    slots = torch.arange(given.shape[2])
    blocks = torch.tensor(list(engine.scheduler.table.block_table(request.row)))[slots // 16]
    for layer, (keys, values) in zip(cache.layers, given, strict=True):
        for stored, rows, scale in ((layer.k, keys, layer.k_scale), (layer.v, values, layer.v_scale)):
            expected = in_float8(rows, scale)
            assert torch.equal(stored[blocks, :, slots % 16].float(), expected.float())
