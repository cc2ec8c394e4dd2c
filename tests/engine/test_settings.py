"""Settings that contradict each other are found before a model is loaded; the live ones by LLM too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cudaprefill import LLM, SamplingParams
from cudaprefill.config import EngineConfig
from cudaprefill.engine import factory
from tests.models.tiny import save_tiny_model
from tests.text.made_tokenizers import byte_level, write_folder


@pytest.mark.parametrize("settings", [{"max_num_seqs": 1000}, {"max_num_batched_tokens": 64, "max_num_seqs": 65}])
def test_a_budget_below_the_seats_is_found_before_the_model_is_loaded(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load_model(*args: object) -> None:
        raise AssertionError("the model was loaded")

    save_tiny_model(tmp_path, "llama")
    write_folder(tmp_path, byte_level())
    monkeypatch.setattr(factory, "load_model", load_model)
    budget = settings.get("max_num_batched_tokens", 512)
    wrong = rf"max_num_batched_tokens \({budget}\).* max_num_seqs \({settings['max_num_seqs']}\)"
    with pytest.raises(ValueError, match=wrong):
        factory.build_engine(EngineConfig(model=tmp_path, device="cpu", **settings))


@pytest.mark.parametrize("target", [-1, float("nan"), float("inf"), "20", True])
def test_a_wrong_itl_target_is_named(target: Any) -> None:
    with pytest.raises(ValueError, match="itl_target_ms must be a number of milliseconds"):
        EngineConfig(itl_target_ms=target)


def test_an_llm_changes_settings_while_it_is_loaded(tmp_path: Path) -> None:
    save_tiny_model(tmp_path, "llama")
    write_folder(tmp_path, byte_level())
    with LLM(tmp_path, device="cpu", max_num_seqs=4, itl_target_ms=30.0, kv_cache_memory=2**20) as llm:
        assert llm.settings.itl_target_ms == 30.0
        greedy = SamplingParams(temperature=0, max_tokens=4)
        before = llm.generate([[1, 2, 3] * 20], greedy)
        settings = llm.change_settings(max_num_batched_tokens=16, itl_target_ms=0)
        assert (settings.max_num_batched_tokens, settings.itl_target_ms) == (16, None)
        assert llm.settings == settings
        after = llm.generate([[1, 2, 3] * 20], greedy)
        assert after[0].outputs[0].token_ids == before[0].outputs[0].token_ids
        with pytest.raises(ValueError, match=r"max_num_batched_tokens \(3\) .* max_num_seqs \(4\)"):
            llm.change_settings(max_num_batched_tokens=3)


@pytest.mark.parametrize(("target", "expected"), [(None, "auto"), ("auto", "auto"), (0, None), (80, 80.0)])
def test_a_cpu_has_a_target_unless_it_is_taken_away(target: Any, expected: Any, tmp_path: Path) -> None:
    save_tiny_model(tmp_path, "llama")
    write_folder(tmp_path, byte_level())
    config = EngineConfig(model=tmp_path, device="cpu", itl_target_ms=target, kv_cache_memory=2**20)
    parts = factory.build_engine(config)
    assert parts.engine.settings.itl_target_ms == expected
    assert parts.info.itl_target_ms == expected


def test_a_gpu_has_no_target_by_itself() -> None:
    assert factory.DEFAULT_ITL_TARGET["cuda"] is None
