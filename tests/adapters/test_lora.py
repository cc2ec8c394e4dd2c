"""LoRA gives PEFT's logits, however its requests are computed and with whom they share a batch."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType
from torch import Tensor

from cudaprefill import ops
from cudaprefill.engine.batch import Batch
from cudaprefill.models import load_model
from cudaprefill.sampling_params import SamplingParams
from tests.adapters.case import BASE, TEXT, Case, ask_all, make_case
from tests.adapters.lora_adapters import CONFIGS, changed, convert_to, lora
from tests.adapters.peft_adapters import Reference
from tests.adapters.recording import RecordingEngine, assert_equal_logits
from tests.models.gguf_files import write_gguf
from tests.models.tiny import reference_logits

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama, biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "mistral": ("mistral", {"sliding_window": 24}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {}),
    "gemma2": ("gemma2", {"tie_word_embeddings": True}),
    "gemma3": ("gemma3_text", {}),
}


@pytest.fixture(scope="module", params=MODELS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    family, overrides = MODELS[request.param]
    return make_case(tmp_path_factory.mktemp(family), family, CONFIGS, **overrides)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """A base model with one adapter."""
    return make_case(tmp_path_factory.mktemp("llama"), "llama", {"seven": CONFIGS["seven"]})


@pytest.mark.parametrize("name", CONFIGS)
def test_alone(case: Case, name: str) -> None:
    engine = case.engine()
    engine.ask("alone", TEXT, name)
    engine.run()
    assert_equal_logits(engine, case.expected)


def test_every_adapter_says_something_else(case: Case) -> None:
    """So that none of the others is a test of the base model."""
    logits = [case.references[name].logits(TEXT)[-1] for name in CONFIGS] + [reference_logits(case.base, TEXT)[-1]]
    for place, one in enumerate(logits):
        for other in logits[:place]:
            assert (one - other).abs().max() > 0.01


def test_mixed_in_one_batch(case: Case) -> None:
    engine = case.engine()
    ask_all(engine)
    engine.run()
    assert_equal_logits(engine, case.expected)


def test_several_requests_of_an_adapter_that_come_and_go(case: Case) -> None:
    engine = case.engine(budget=64)
    names = [BASE, *CONFIGS]
    for number in range(24):
        params = SamplingParams(temperature=0, max_tokens=1 + number % 7, ignore_eos=True, detokenize=False)
        name = names[(5 * number) % 4 + number // 12]
        engine.ask(str(number), TEXT[number % 9 :], name, params=params)
        if number % 3 == 0:
            engine.step()
    engine.run()
    assert_equal_logits(engine, case.expected)


@pytest.mark.parametrize("budget", [1, 7, 17, 48])
def test_chunked(case: Case, budget: int) -> None:
    engine = case.engine(budget=budget)
    ask_all(engine)
    engine.run()
    assert_equal_logits(engine, case.expected)


def test_cached_and_never_by_another_adapter(case: Case) -> None:
    engine = case.engine(budget=48)
    first = ask_all(engine)
    engine.run()
    second = ask_all(engine, 1)
    engine.run()
    assert_equal_logits(engine, case.expected)
    assert [request.num_hit_tokens for request in first.values()] == [0] * len(first)
    assert [request.num_hit_tokens for request in second.values()] == [32] * len(second)


@pytest.mark.parametrize("caching", [False, True])
def test_preempted(case: Case, caching: bool) -> None:
    engine = case.engine(num_blocks=14, budget=40, caching=caching)
    requests = ask_all(engine, params=SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, detokenize=False))
    engine.run()
    assert sum(request.num_preemptions for request in requests.values()) >= 1
    assert_equal_logits(engine, case.expected)


def test_siblings(case: Case) -> None:
    engine = case.engine()
    params = SamplingParams(n=3, temperature=1.0, seed=1, max_tokens=10, ignore_eos=True, detokenize=False)
    engine.ask("siblings", TEXT, "seven", params=params)
    engine.run()
    assert_equal_logits(engine, case.expected)


def test_matrices_that_the_file_holds_fused(tmp_path: Path) -> None:
    """One A for q, k and v together, and one for gate and up."""
    configs = {
        "all": lora(8, target_modules="all-linear"),
        "attention": lora(5, target_modules=["qkv_proj", "o_proj"]),
        "feed-forward": lora(16, target_modules=["gate_up_proj", "down_proj"]),
    }
    case = make_case(tmp_path, "phi3", configs)
    engine = case.engine(budget=48)
    ask_all(engine)
    engine.run()
    assert_equal_logits(engine, case.expected)


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe"])
def test_attention_beside_experts(tmp_path: Path, family: str) -> None:
    configs = {"attention": lora(8, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"])}
    case = make_case(tmp_path, family, configs)
    engine = case.engine(budget=48)
    ask_all(engine)
    engine.run()
    assert_equal_logits(engine, case.expected)


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_on_a_gguf_file(tmp_path: Path, family: str) -> None:
    """Where a file's rows of q and k are in another order, those of the adapter's B are not."""
    case = make_case(tmp_path, family, {"seven": CONFIGS["seven"]})
    write_gguf(tmp_path / "model.gguf", case.base)
    case = replace(case, model=load_model(tmp_path / "model.gguf"))
    engine = case.engine()
    ask_all(engine)
    engine.run()
    assert_equal_logits(engine, case.expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_matrices_keep_the_precision_in_which_they_are_stored(llama: Case, tmp_path: Path, dtype: torch.dtype) -> None:
    half = changed(llama.folders["seven"], tmp_path / "half", tensors=convert_to(dtype))
    widened = changed(half, tmp_path / "widened", tensors=convert_to(torch.float32))
    case = Case(llama.model, llama.base, {"half": half}, {"half": Reference(llama.base, widened)})
    engine = case.engine()
    engine.ask("1", TEXT, "half")
    engine.run()
    assert_equal_logits(engine, case.expected)
    weights = engine.adapters.get("half").lora
    assert weights is not None
    assert {tensor.dtype for tensor in weights.tensors} == {dtype}


def test_beside_products_of_8_bits_matrices_have_16(tmp_path: Path) -> None:
    """The logits are off by what the model's own products are off by, and not by much more."""
    made = make_case(tmp_path, "llama", {"seven": CONFIGS["seven"]}, intermediate_size=128)
    write_gguf(tmp_path / "model.gguf", made.base, GGMLQuantizationType.Q8_0)
    logits = {}
    for math in ("float32", "int8"):
        case = replace(made, model=load_model(tmp_path / "model.gguf", linear_math=math))
        engine = case.engine()
        for name in (BASE, "seven"):
            engine.ask(f"{name}", TEXT, name)
        engine.run()
        logits[math] = {request.request_id: row for request, place, row in engine.seen if place == 0}
        weights = engine.adapters.get("seven").lora
        assert weights is not None
        expected = torch.bfloat16 if math == "int8" else torch.float32
        assert {tensor.dtype for tensor in weights.tensors} == {expected}
    errors = {name: (logits["int8"][name] - row).norm() / row.norm() for name, row in logits["float32"].items()}
    assert errors["seven"] < 3 * errors["None"]


def test_two_precisions_in_one_batch(llama: Case, tmp_path: Path) -> None:
    half = changed(llama.folders["seven"], tmp_path / "half", tensors=convert_to(torch.bfloat16))
    widened = changed(half, tmp_path / "widened", tensors=convert_to(torch.float32))
    case = Case(
        llama.model,
        llama.base,
        {**llama.folders, "half": half},
        {**llama.references, "half": Reference(llama.base, widened)},
    )
    engine = case.engine()
    ask_all(engine)
    engine.run()
    assert_equal_logits(engine, case.expected)


class WatchedRunner:
    """Notes what each step has of LoRA."""

    def __init__(self, engine: RecordingEngine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.batches: list[Batch] = []
        self.calls = 0
        run, add_lora = engine.model_runner.run, ops.add_lora

        def noting_run(batch: Batch) -> Tensor:
            self.batches.append(batch)
            return run(batch)

        def noting_add_lora(*arguments: Tensor) -> None:
            self.calls += 1
            add_lora(*arguments)

        monkeypatch.setattr(engine.model_runner, "run", noting_run)
        monkeypatch.setattr(ops, "add_lora", noting_add_lora)


def test_while_the_same_requests_decode_nothing_is_made_anew(llama: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = llama.engine()
    watched = WatchedRunner(engine, monkeypatch)
    ask_all(engine)
    engine.run()
    decodes = [batch.lora for batch in watched.batches if not batch.num_chunks]
    assert len(decodes) > 3
    assert all(lora is decodes[0] for lora in decodes)


def test_steps_without_adapters_do_nothing_for_them(llama: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = llama.engine()
    watched = WatchedRunner(engine, monkeypatch)
    engine.ask("base", TEXT)
    engine.run()
    assert watched.calls == 0
    assert all(batch.lora is None for batch in watched.batches)
    engine.ask("seven", TEXT, "seven")
    engine.run()
    assert watched.calls > 0


def test_layers_that_no_adapter_has_are_left_out(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = RecordingEngine(case.model).load({"a pattern": case.folders["a pattern"]})
    watched = WatchedRunner(engine, monkeypatch)
    engine.ask("1", TEXT, "a pattern")
    engine.run()
    assert watched.calls == 2 * len(watched.batches)  # qkv and gate_up of one layer


def test_an_unloaded_adapter_leaves_the_memory(llama: Case) -> None:
    engine = llama.engine()
    request = engine.ask("1", TEXT, "seven")
    engine.run()
    assert request.adapter is not None
    weights = weakref.ref(request.adapter.lora)
    engine.adapters.withdraw("seven").unload().result()
    engine.seen.clear()
    del request
    gc.collect()
    assert weights() is None


def test_other_content_under_the_same_name_never_hits_the_old_blocks(llama: Case, tmp_path: Path) -> None:
    def louder(config: dict[str, Any]) -> None:
        config["lora_alpha"] = 17

    engine = llama.engine()
    engine.ask("1", TEXT, "seven")
    engine.run()
    for round_, folder in enumerate([changed(llama.folders["seven"], tmp_path / "other", louder), None]):
        engine.adapters.withdraw("seven").unload().result()
        engine.adapters.load("seven", folder or llama.folders["seven"])
        request = engine.ask(f"again {round_}", TEXT, "seven")
        engine.run()
        assert request.num_hit_tokens == (0 if folder else 32)
