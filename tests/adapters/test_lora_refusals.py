"""LoRA adapters that would give other results than PEFT's are refused, with the reason."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig
from torch import Tensor

from cudaprefill.adapters import AdapterError, AdapterRegistry, AdapterTarget
from cudaprefill.models import read_model_config
from tests.adapters.lora_adapters import SEVEN, changed, lora
from tests.adapters.peft_adapters import save_adapter
from tests.models.tiny import save_tiny_model

Q = "base_model.model.model.layers.0.self_attn.q_proj"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, and in "good" an adapter of it."""
    folder = tmp_path_factory.mktemp("llama")
    base = save_tiny_model(folder, "llama")
    save_adapter(folder / "good", base, lora(4, target_modules=SEVEN))
    return folder


@pytest.fixture(scope="module")
def registry(folder: Path) -> AdapterRegistry:
    dtype = torch.float32
    return AdapterRegistry(AdapterTarget(read_model_config(folder), torch.device("cpu"), dtype, dtype, 256))


def refuse(registry: AdapterRegistry, folder: Path, message: str) -> None:
    with pytest.raises(AdapterError, match=message):
        registry.load("bad", folder)
    assert "bad" not in registry


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("use_dora", True, "use_dora = True is not supported"),
        ("bias", "all", "bias = 'all' is not supported, only 'none'"),
        ("bias", "lora_only", "bias = 'lora_only'"),
        ("lora_bias", True, "lora_bias = True is not supported"),
        ("modules_to_save", ["lm_head"], "modules_to_save = \\['lm_head'\\]"),
        ("layer_replication", [[0, 1], [0, 1]], "layer_replication"),
        ("fan_in_fan_out", True, "fan_in_fan_out"),
        ("trainable_token_indices", [1, 2], "trainable_token_indices"),
        ("target_parameters", ["mlp.experts.gate_up_proj"], "target_parameters"),
        ("alora_invocation_tokens", [1, 2], "alora_invocation_tokens"),
        ("megatron_config", {"a": 1}, "megatron_config"),
        ("use_qalora", True, "use_qalora"),
        ("use_bdlora", {"a": 1}, "use_bdlora"),
        ("arrow_config", {"a": 1}, "arrow_config"),
        ("a_key_of_tomorrow", 1, "a_key_of_tomorrow = 1 is not supported for LORA"),
        ("task_type", "SEQ_CLS", "task_type = 'SEQ_CLS'"),
        ("init_lora_weights", "pissa", "init_lora_weights = 'pissa' .* changes the base model's weights"),
        ("init_lora_weights", "olora", "init_lora_weights = 'olora'"),
        ("init_lora_weights", "loftq", "init_lora_weights = 'loftq'"),
        ("init_lora_weights", "corda", "init_lora_weights = 'corda'"),
        ("target_modules", None, "target_modules is missing"),
        ("target_modules", 3, "target_modules must be a pattern or a list of names, got 3"),
        ("target_modules", ["q_proj", 1], "target_modules must be a pattern or a list of names"),
        ("target_modules", ["c_attn"], "target_modules names 'c_attn', which is no linear layer"),
        ("target_modules", [*SEVEN, "lm_head"], "target_modules names 'lm_head'"),
        ("target_modules", [*SEVEN, "embed_tokens"], "target_modules names 'embed_tokens'"),
        ("target_modules", "(", "target_modules is no regular expression that is served: unclosed group"),
        ("target_modules", "q_proj)|(k_proj", "target_modules is no regular expression that is served: unopened group"),
        ("target_modules", "(?:a{1,1000}){1,1000}", "that is served: Compiled regex exceeds size limit"),
        ("target_modules", r"(?!.*visual).*q_proj", "target_modules is no regular .* look-around"),
        ("target_modules", "nothing", "target_modules = 'nothing' names no linear layer of the model"),
        ("target_modules", SEVEN[1:], "has tensors of 'model.layers.0.self_attn.q_proj', which .* does not name"),
        ("exclude_modules", ["down_proj"], "has tensors of 'model.layers.0.mlp.down_proj', which .* does not name"),
        ("exclude_modules", SEVEN, "names no linear layer of the model"),
        ("layers_to_transform", [0], "has tensors of 'model.layers.1.*', which .* does not name"),
        ("layers_to_transform", "all", "layers_to_transform must be a layer or a list of them, got 'all'"),
        ("r", None, "r is missing"),
        ("r", 0, "r must be an integer of at least 1, got 0"),
        ("r", "4", "r must be an integer of at least 1, got '4'"),
        ("r", 65, "r must be a rank of 1 to 64, which is the highest, got 65"),
        ("r", 5, r"lora_A of '.*' must have the shape \(5, \d+\) .* got \(4, \d+\); .* made for 'a-base'"),
        ("rank_pattern", {"q_proj": 65}, r"rank_pattern\['q_proj'\] must be a rank of 1 to 64.*, got 65"),
        ("rank_pattern", {"q_proj": 3}, r"lora_A of 'model.layers.0.self_attn.q_proj' must have the shape \(3, 96\)"),
        ("rank_pattern", ["q_proj"], "rank_pattern must map patterns to values"),
        ("rank_pattern", {"(": 4}, "rank_pattern is no regular expression"),
        (
            "alpha_pattern",
            {"q_proj": 10**400},
            r"alpha_pattern\['q_proj'\] must be a number .* an integer of 1329 bits",
        ),
        ("lora_alpha", -1e39, "lora_alpha must be a number of at most .*, got -1e"),
        ("lora_alpha", "9" * 1000, "got '9{80,100}\\.\\.\\.$"),
        ("lora_alpha", "2", "lora_alpha must be a number of at most 3.4e.38, got '2'"),
        (
            "alpha_pattern",
            {"q_proj": float("nan")},
            r"alpha_pattern\['q_proj'\] must be a number of at most .*, got nan",
        ),
        ("use_rslora", 1, "use_rslora must be true or false, got 1"),
    ],
)
def test_configurations(
    registry: AdapterRegistry, folder: Path, tmp_path: Path, key: str, value: object, message: str
) -> None:
    def change(config: dict[str, Any]) -> None:
        config.update({"base_model_name_or_path": "a-base", key: value})

    refuse(registry, changed(folder / "good", tmp_path / "bad", change), message)


@pytest.mark.parametrize("key", ["target_modules", "exclude_modules", "rank_pattern", "alpha_pattern"])
def test_a_pattern_that_python_would_try_for_hours(
    registry: AdapterRegistry, folder: Path, tmp_path: Path, key: str
) -> None:
    endless = r"([\w.]+)+!"
    value = {endless: 4} if key.endswith("_pattern") else endless
    bad = changed(folder / "good", tmp_path / "bad", lambda config: config.update({key: value}))
    if key == "target_modules":
        refuse(registry, bad, "names no linear layer of the model")
    else:
        registry.load(key, bad)


@pytest.mark.parametrize("patterns", [True, [1], {"a": 1}])
def test_patterns_of_layers_that_are_none(
    registry: AdapterRegistry, folder: Path, tmp_path: Path, patterns: object
) -> None:
    keys = {"layers_to_transform": [0, 1], "layers_pattern": patterns}
    bad = changed(folder / "good", tmp_path / "bad", lambda config: config.update(keys))
    refuse(registry, bad, "layers_pattern must be a pattern or a list of them, got ")


def test_the_unchanged_adapter_is_loaded(registry: AdapterRegistry, folder: Path) -> None:
    assert registry.load("good", folder / "good").kind == "LoRA"


def put(name: str, tensor: Tensor) -> Callable[[dict[str, Tensor]], None]:
    def change(tensors: dict[str, Tensor]) -> None:
        tensors[name] = tensor

    return change


def take(name: str) -> Callable[[dict[str, Tensor]], object]:
    return lambda tensors: tensors.pop(name)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            take(f"{Q}.lora_A.weight"),
            "lacks lora_A or lora_B of 1 target modules, such as '.*layers.0.*q_proj'",
        ),
        (take(f"{Q}.lora_B.weight"), "lacks lora_A or lora_B of 1 target modules"),
        (put(f"{Q}.lora_A.weight", torch.zeros(4, 97)), r"lora_A of .* shape \(4, 96\) .* got \(4, 97\)"),
        (put(f"{Q}.lora_B.weight", torch.zeros(383, 4)), r"lora_B of .* shape \(384, 4\) .* got \(383, 4\)"),
        (put(f"{Q}.lora_B.weight", torch.zeros(4)), r"lora_B of .* got \(4,\)"),
        (put(f"{Q}.lora_B.weight", torch.full((384, 4), torch.nan)), "holds values that are not finite"),
        (put(f"{Q}.lora_A.weight", torch.zeros(4, 96, dtype=torch.int8)), "is torch.int8, only"),
        (put(f"{Q}.lora_magnitude_vector", torch.zeros(4)), "DoRA is not served"),
        (put("base_model.model.model.embed_tokens.lora_embedding_A", torch.zeros(4, 9)), "LoRA of embeddings"),
        (put(f"{Q}.base_layer.bias", torch.zeros(4)), "trained biases are not served"),
        (put("base_model.model.lm_head.modules_to_save.weight", torch.zeros(4)), "fully trained modules"),
        (put("something", torch.zeros(4)), "'something': it is not known"),
        (
            put("base_model.model.model.layers.2.mlp.up_proj.lora_A.weight", torch.zeros(4, 96)),
            "the model has no linear layer 'model.layers.2.mlp.up_proj'",
        ),
        (put("base_model.model.lm_head.lora_A.weight", torch.zeros(4, 96)), "no linear layer 'lm_head'"),
    ],
)
def test_tensors(
    registry: AdapterRegistry,
    folder: Path,
    tmp_path: Path,
    change: Callable[[dict[str, Tensor]], object],
    message: str,
) -> None:
    refuse(registry, changed(folder / "good", tmp_path / "bad", tensors=change), message)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (lora(4, target_modules=["q_proj"], use_dora=True), "use_dora"),
        (lora(4, target_modules=["q_proj"], modules_to_save=["lm_head"]), "modules_to_save"),
        (lora(4, target_modules=["q_proj"], lora_bias=True), "lora_bias"),
        (lora(4, target_modules=["q_proj", "embed_tokens"]), "embed_tokens"),
        (lora(4, target_modules=["q_proj", "lm_head"]), "lm_head"),
        (lora(65, target_modules=["q_proj"]), "rank of 1 to 64"),
    ],
)
def test_what_peft_saves_of_what_is_not_served(
    registry: AdapterRegistry, tmp_path: Path, config: LoraConfig, message: str
) -> None:
    base = save_tiny_model(tmp_path, "llama")
    save_adapter(tmp_path / "bad", base, config)
    refuse(registry, tmp_path / "bad", re.escape(message))


def test_values_that_bfloat16_does_not_hold(registry: AdapterRegistry, folder: Path, tmp_path: Path) -> None:
    """Beside products in 8 bits matrices are rounded to it."""
    change = put(f"{Q}.lora_A.weight", torch.full((4, 96), torch.finfo(torch.float32).max))
    large = changed(folder / "good", tmp_path / "large", tensors=change)
    registry.load("large", large)
    assert registry.target is not None
    rounding = AdapterRegistry(dataclasses.replace(registry.target, int8=True))
    refuse(rounding, large, r"lora_A' holds 3.4e\+38, but is computed with in torch.bfloat16, which ends at 3.39e\+38")


def test_an_adapter_of_a_larger_model(registry: AdapterRegistry, tmp_path: Path) -> None:
    base = save_tiny_model(tmp_path, "llama", hidden_size=132)
    save_adapter(tmp_path / "bad", base, lora(4, target_modules=SEVEN))
    refuse(registry, tmp_path / "bad", r"lora_. of '.*' must have the shape .*96.* got .*132")


def test_experts(tmp_path: Path) -> None:
    save_tiny_model(tmp_path, "mixtral")
    dtype = torch.float32
    registry = AdapterRegistry(AdapterTarget(read_model_config(tmp_path), torch.device("cpu"), dtype, dtype, 256))
    dense = save_tiny_model(tmp_path, "llama")
    save_adapter(tmp_path / "bad", dense, lora(4, target_modules=SEVEN))
    refuse(
        registry, tmp_path / "bad", "target_modules names '(gate|up|down)_proj', which is no linear layer in which LoRA"
    )


def test_weights_that_are_pickled(registry: AdapterRegistry, folder: Path, tmp_path: Path) -> None:
    bad = changed(folder / "good", tmp_path / "bad")
    (bad / "adapter_model.safetensors").unlink()
    torch.save({}, bad / "adapter_model.bin")
    refuse(registry, bad, "holds only pickled weights")


def test_experts_are_no_linear_layers(tmp_path: Path) -> None:
    """Layer 0 has experts."""
    base = save_tiny_model(tmp_path, "qwen3_moe")
    save_adapter(tmp_path / "good", base, lora(4, target_modules=["q_proj"]))
    dtype = torch.float32
    moe = AdapterRegistry(AdapterTarget(read_model_config(tmp_path), torch.device("cpu"), dtype, dtype, 256))
    change = put("base_model.model.model.layers.0.mlp.up_proj.lora_A.weight", torch.zeros(4, 96))
    bad = changed(tmp_path / "good", tmp_path / "bad", tensors=change)
    refuse(moe, bad, "the model has no linear layer 'model.layers.0.mlp.up_proj' in which LoRA is served")
