"""Scales of a float8 KV cache: calibrated, of a checkpoint, and in the engine that runs with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from cudaprefill import LLM, SamplingParams
from cudaprefill.config import EngineConfig
from cudaprefill.engine.factory import build_engine
from cudaprefill.engine.kv_cache import KVCache
from cudaprefill.engine.kv_scales import FLOAT8, MARGIN, calibrated_scales, largest_numbers, scales_for
from cudaprefill.models import UnsupportedModelError, WeightsError, load_model
from cudaprefill.text.tokenizer import Tokenizer
from tests.models.tiny import save_tiny_model
from tests.text.made_tokenizers import byte_level, write_folder

SMALL: dict[str, Any] = {"device": "cpu", "kv_cache_memory": 2**20, "max_num_seqs": 4}
CHECKPOINT_NAMES = {
    "compressed-tensors": ("self_attn.k_scale", "self_attn.v_scale"),
    "ModelOpt": ("self_attn.k_proj.k_scale", "self_attn.v_proj.v_scale"),
    "vLLM": ("self_attn.attn.k_scale", "self_attn.attn.v_scale"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("llama")
    save_tiny_model(path, "llama")
    write_folder(path, byte_level())
    return path


def test_a_scale_is_the_least_power_of_two_that_leaves_the_margin() -> None:
    largest = torch.tensor([1e-20, 0.01, 1.0, 223.9, 224.0, 224.1, 448.0, 1e9])
    scales = scales_for(largest)
    assert torch.equal(scales.log2(), scales.log2().round())
    assert (largest * MARGIN <= 448 * scales).all()
    assert (largest * MARGIN > 448 * scales / 2).all()
    assert scales[3:6].tolist() == [1.0, 1.0, 2.0]


def test_heads_of_zeros_get_a_scale_of_one() -> None:
    assert scales_for(torch.zeros(2)).tolist() == [1.0, 1.0]


def test_heads_of_next_to_nothing_get_a_scale_that_can_be_inverted() -> None:
    scales = scales_for(torch.tensor([1e-45, 1e-40, 1e-37]))
    assert (scales >= torch.finfo(torch.float32).tiny).all()
    assert (1 / scales).isfinite().all()


@torch.inference_mode()
def test_the_largest_numbers_are_those_of_transformers(tmp_path: Path) -> None:
    reference: Any = save_tiny_model(tmp_path, "qwen2")
    token_ids = torch.tensor([(7 * i) % 47 + 1 for i in range(21)])  # the last block is not full
    cached = reference(token_ids[None], use_cache=True).past_key_values
    expected = torch.stack(
        [torch.stack([layer.keys[0], layer.values[0]]).abs().amax(dim=(2, 3)) for layer in cached.layers]
    )
    torch.testing.assert_close(largest_numbers(load_model(tmp_path), token_ids), expected)


def test_calibration_gives_the_same_every_time(folder: Path) -> None:
    model, tokenizer = load_model(folder), Tokenizer.load(folder)
    first = calibrated_scales(model, tokenizer, 256)
    assert torch.equal(first, calibrated_scales(model, tokenizer, 256))
    config = model.config
    assert first.shape == (config.num_layers, 2, config.num_kv_heads)


def test_a_cache_without_scales_has_ones_and_other_caches_have_none() -> None:
    cache = KVCache(2, 3, 4, 16, 8, FLOAT8)
    assert all(torch.equal(scale, torch.ones(4)) for layer in cache.layers for scale in (layer.k_scale, layer.v_scale))
    assert KVCache.block_bytes(2, 4, 16, 8, FLOAT8) == cache.data[:, :, 0].nbytes
    other = KVCache(2, 3, 4, 16, 8, torch.bfloat16)
    assert other.scales is None
    assert other.layers[0].k_scale is None


@pytest.mark.parametrize("name", ["fp8", "fp8_e4m3"])
def test_an_engine_has_twice_the_blocks_of_bfloat16_and_says_its_scales(folder: Path, name: str) -> None:
    half = build_engine(EngineConfig(model=folder, kv_cache_dtype="bfloat16", **SMALL)).info
    parts = build_engine(EngineConfig(model=folder, kv_cache_dtype=name, **SMALL))
    info = parts.info
    assert (info.kv_cache_dtype, half.kv_cache_dtype) == ("float8_e4m3fn", "bfloat16")
    assert (info.num_blocks, info.block_bytes) == (2 * half.num_blocks, half.block_bytes // 2)
    assert half.kv_scales is None
    assert info.kv_scales is not None
    assert info.kv_scales.startswith("calibrated, K ")
    scales = parts.engine.model_runner.kv_cache.scales  # type: ignore[attr-defined]
    assert torch.equal(scales, calibrated_scales(load_model(folder), Tokenizer.load(folder), info.max_model_len))


def with_scales(folder: Path, to: Path, scales: dict[str, Tensor]) -> Path:
    """A copy of a checkpoint with more tensors."""
    to.mkdir(exist_ok=True)
    for file in folder.iterdir():
        (to / file.name).write_bytes(file.read_bytes())
    save_file(load_file(folder / "model.safetensors") | scales, to / "model.safetensors")
    return to


def checkpoint_scales(names: tuple[str, str], k_scale: Tensor, v_scale: Tensor) -> dict[str, Tensor]:
    """Layer n has 2^n times the scale of layer 0."""
    return {
        f"model.layers.{layer}.{name}": scale * 2**layer
        for layer in range(2)
        for name, scale in zip(names, (k_scale, v_scale), strict=True)
    }


@pytest.mark.parametrize("heads", [(), (1,), (2,)])
@pytest.mark.parametrize("names", CHECKPOINT_NAMES.values(), ids=CHECKPOINT_NAMES)
def test_scales_of_a_checkpoint_are_used(
    folder: Path, tmp_path: Path, names: tuple[str, str], heads: tuple[int, ...]
) -> None:
    k_scale, v_scale = torch.rand(2, *heads) + 0.1
    path = with_scales(folder, tmp_path / "model", checkpoint_scales(names, k_scale, v_scale))
    parts = build_engine(EngineConfig(model=path, kv_cache_dtype="fp8", **SMALL))
    assert parts.info.kv_scales is not None
    assert parts.info.kv_scales.startswith("of the checkpoint, K ")
    scales = parts.engine.model_runner.kv_cache.scales  # type: ignore[attr-defined]
    for layer in range(2):
        assert torch.equal(scales[layer, 0], (k_scale * 2**layer).expand(2))
        assert torch.equal(scales[layer, 1], (v_scale * 2**layer).expand(2))
    assert build_engine(EngineConfig(model=path, **SMALL)).info.kv_scales is None


@pytest.mark.parametrize(
    ("changed", "runs"),
    [
        ({}, True),
        ({"config_groups": {"group_0": {"targets": ["Linear"]}}}, False),
        ({"kv_cache_scheme": None}, False),
        ({"kv_cache_scheme": {"type": "int", "num_bits": 8}}, False),
    ],
)
def test_a_checkpoint_may_quantise_its_kv_cache_and_nothing_else(
    folder: Path, tmp_path: Path, changed: dict[str, Any], runs: bool
) -> None:
    scheme = {"type": "float", "num_bits": 8, "strategy": "tensor", "symmetric": True, "dynamic": False}
    told = {"quant_method": "compressed-tensors", "config_groups": {}, "kv_cache_scheme": scheme} | changed
    path = with_scales(folder, tmp_path / "model", {})
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"quantization_config": told}))
    if runs:
        load_model(path)
    else:
        with pytest.raises(UnsupportedModelError, match="quantization_config"):
            load_model(path)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model.layers.1.self_attn.v_scale": None}, "missing v_scale of layer 1"),
        ({"model.layers.1.self_attn.v_scale": torch.ones(3)}, "must have 1 element or 2, one for each KV head, got 3"),
        ({"model.layers.0.self_attn.k_scale": torch.tensor(-1.0)}, "must hold normal numbers above 0, got -1"),
        ({"model.layers.0.self_attn.k_scale": torch.tensor(0.0)}, "must hold normal numbers above 0, got 0"),
        (
            {"model.layers.0.self_attn.k_scale": torch.tensor([0.5, torch.inf])},
            "must hold normal numbers above 0, got inf",
        ),
        ({"model.layers.0.mlp.k_scale": torch.tensor(1.0)}, "unexpected tensor 'model.layers.0.mlp.k_scale'"),
        ({"model.layers.0.self_attn.v_proj.k_scale": torch.tensor(1.0)}, "unexpected tensor .*v_proj.k_scale"),
        ({"model.layers.2.self_attn.k_scale": torch.tensor(1.0)}, "k_scale' is of layer 2, and the last layer is 1"),
        ({"model.layers.1.self_attn.attn.v_scale": torch.tensor(1.0)}, "are both the v_scale of layer 1"),
    ],
)
def test_scales_that_do_not_fit_are_refused_by_name(
    folder: Path, tmp_path: Path, changed: dict[str, Tensor | None], message: str
) -> None:
    scales = checkpoint_scales(CHECKPOINT_NAMES["compressed-tensors"], torch.tensor(1.0), torch.tensor(1.0)) | changed
    path = with_scales(folder, tmp_path / "model", {name: of for name, of in scales.items() if of is not None})
    with pytest.raises(WeightsError, match=message):
        load_model(path)


def test_tokens_generated_over_float8_are_those_of_an_exact_cache_for_a_while(folder: Path) -> None:
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    prompts = [[(7 * i + n) % 47 + 1 for i in range(30)] for n in range(3)]
    told = []
    for dtype in ("float32", "fp8"):
        with LLM(folder, kv_cache_dtype=dtype, **SMALL) as llm:
            told.append([output.outputs[0].token_ids[0] for output in llm.generate(prompts, params)])
    assert told[0] == told[1]


def test_info_shows_them(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from cudaprefill.cli.main import main

    arguments = ["info", "--model", str(folder), "--device", "cpu", "--kv-cache-memory", "1MiB"]
    assert main([*arguments, "--kv-cache-dtype", "fp8"]) == 0
    shown = capsys.readouterr().out
    assert "of float8_e4m3fn (" in shown
    assert "KV scales     calibrated, K " in shown
    assert main([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kv_scales"] is None
