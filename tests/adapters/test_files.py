"""What an adapter's files must hold, and why others are refused."""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from cudaprefill.adapters import AdapterError, AdapterRegistry, AdapterTarget
from tests.adapters.by_hand import (
    MODEL,
    PROMPT_CONFIG,
    TARGET,
    write_adapter,
    write_prefix_adapter,
    write_prompt_adapter,
)


def load(folder: Path, target: AdapterTarget = TARGET) -> Any:
    return AdapterRegistry(target).load("a", folder)


def test_a_prompt_adapter_is_its_embeddings(tmp_path: Path) -> None:
    adapter = load(write_prompt_adapter(tmp_path))
    assert (adapter.kind, adapter.virtual_tokens.num_tokens, adapter.virtual_tokens.num_given) == (
        "prompt tuning",
        20,
        0,
    )
    assert adapter.virtual_tokens.token_ids == list(range(-1, -21, -1))


def test_a_prefix_adapter_is_its_keys_and_values(tmp_path: Path) -> None:
    adapter = load(write_prefix_adapter(tmp_path))
    assert (adapter.kind, adapter.virtual_tokens.num_given) == ("prefix tuning", 20)
    assert adapter.virtual_tokens.keys_values.shape == (2, 2, 20, 2, 64)


def test_both_kinds_of_prompt_learning_have_names_of_their_own(tmp_path: Path) -> None:
    config = {"peft_type": "P_TUNING", "encoder_reparameterization_type": "LSTM", "encoder_hidden_size": 8}
    assert load(write_prompt_adapter(tmp_path, **config)).kind == "P-tuning"


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (
            {"token_dim": 64},
            "token_dim is 64, but the model has the hidden size 96; the adapter was made for 'other/model'",
        ),
        ({"num_layers": 30}, "num_layers is 30, but the model has the number of layers 2"),
        ({"num_virtual_tokens": 0}, "num_virtual_tokens must be an integer of at least 1, got 0"),
        ({"num_virtual_tokens": None}, "num_virtual_tokens is missing"),
        ({"num_virtual_tokens": 8}, r"'prompt_embeddings' must have the shape \(8, 96\), got \(20, 96\)"),
        ({"num_transformer_submodules": 2}, "num_transformer_submodules = 2 is not supported, only 1"),
        ({"task_type": "SEQ_2_SEQ_LM"}, "task_type = 'SEQ_2_SEQ_LM' is not supported, only 'CAUSAL_LM'"),
        ({"modules_to_save": ["lm_head"]}, r"modules_to_save = \['lm_head'\] is not supported"),
        ({"num_ranks": 3}, "num_ranks = 3 is not supported for PROMPT_TUNING"),
        ({"peft_type": "MULTITASK_PROMPT_TUNING"}, "of the type 'MULTITASK_PROMPT_TUNING' are not served, only "),
        ({"peft_type": None}, "peft_type must be the name of a kind of adapter, got None"),
        ({"peft_type": ["LORA"]}, "peft_type must be the name of a kind of adapter, got "),
    ],
)
def test_configurations_that_do_not_fit(tmp_path: Path, config: dict[str, Any], reason: str) -> None:
    write_prompt_adapter(tmp_path, base_model_name_or_path="other/model", **config)
    with pytest.raises(AdapterError, match=reason):
        load(tmp_path)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"num_attention_heads": 6}, "num_attention_heads is 6, but the model has the number of KV heads 2"),
        ({"token_dim": 384}, "token_dim is 384, but the model has the size of all KV heads 128"),
        ({"num_virtual_tokens": 21}, r"must have the shape \(21, 512\), got \(20, 512\)"),
    ],
)
def test_prefixes_that_do_not_fit(tmp_path: Path, config: dict[str, Any], reason: str) -> None:
    write_prefix_adapter(tmp_path, **config)
    with pytest.raises(AdapterError, match=reason):
        load(tmp_path)


def test_keys_of_later_versions_that_ask_for_nothing_pass(tmp_path: Path) -> None:
    load(write_prompt_adapter(tmp_path, peft_version="99.0", new_thing=None, other_thing=False, third_thing={}))


def test_more_virtual_tokens_than_positions(tmp_path: Path) -> None:
    write_prompt_adapter(tmp_path, num_tokens=255)
    with pytest.raises(AdapterError, match=r"255 virtual tokens leave no room .*: max_model_len is 256"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("tensors", "reason"),
    [
        ({}, "holds no tensor 'prompt_embeddings'"),
        ({"other": torch.zeros(20, 96)}, r"holds no tensor 'prompt_embeddings', only \['other'\]"),
        ({"prompt_embeddings": torch.zeros(20, 96), "x": torch.zeros(1)}, r"holds unexpected tensors \['x'\]"),
        ({"prompt_embeddings": torch.zeros(20, 96, dtype=torch.int8)}, "is torch.int8, "),
        ({"prompt_embeddings": torch.full((20, 96), torch.nan)}, "holds values that are not finite"),
        ({"prompt_embeddings": torch.zeros(20, 48)}, r"must have the shape \(20, 96\), got \(20, 48\)"),
    ],
)
def test_tensors_that_do_not_fit(tmp_path: Path, tensors: dict[str, Tensor], reason: str) -> None:
    write_adapter(tmp_path, {**PROMPT_CONFIG, "num_virtual_tokens": 20}, tensors)
    with pytest.raises(AdapterError, match=reason):
        load(tmp_path)


def test_a_file_that_is_cut_off(tmp_path: Path) -> None:
    write_prompt_adapter(tmp_path)
    path = tmp_path / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(AdapterError, match="is damaged or cut off"):
        load(tmp_path)


def test_folders_without_an_adapter(tmp_path: Path) -> None:
    with pytest.raises(AdapterError, match="is not a folder"):
        load(tmp_path / "nowhere")
    with pytest.raises(AdapterError, match=r"adapter_config\.json does not exist"):
        load(tmp_path)
    (tmp_path / "adapter_config.json").write_text("{")
    with pytest.raises(AdapterError, match=r"adapter_config\.json is not valid JSON"):
        load(tmp_path)
    (tmp_path / "adapter_config.json").write_text(json.dumps({**PROMPT_CONFIG, "num_virtual_tokens": 20}))
    with pytest.raises(AdapterError, match=r"holds no adapter_model\.safetensors"):
        load(tmp_path)


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file_is_not_opened(tmp_path: Path, name: str, make: Callable[[Path], None]) -> None:
    """To open a pipe would be to wait for ever, with Python's lock."""
    write_prompt_adapter(tmp_path)
    (tmp_path / name).unlink()
    make(tmp_path / name)
    with pytest.raises(AdapterError, match=rf"{name} is not a file"):
        load(tmp_path)


HALF = dataclasses.replace(TARGET, activation_dtype=torch.float16, kv_dtype=torch.float16)


@pytest.mark.parametrize("size", [96, 512])
def test_values_that_the_dtype_of_the_engine_does_not_hold(tmp_path: Path, size: int) -> None:
    """In float16 they would be infinite, and everything behind them NaN."""
    write = write_prompt_adapter if size == MODEL.hidden_size else write_prefix_adapter
    write(tmp_path)
    save_file({"prompt_embeddings": torch.full((20, size), 7e4)}, tmp_path / "adapter_model.safetensors")
    load(tmp_path)
    with pytest.raises(
        AdapterError, match=r"holds 7e\+04, but is computed with in torch\.float16, .* ends at 6\.55e\+04"
    ):
        load(tmp_path, HALF)


def test_what_a_narrower_cache_makes_of_a_prefix_is_left_to_the_op_that_writes_it(tmp_path: Path) -> None:
    write_prefix_adapter(tmp_path)
    values = torch.full((20, 512), 7e4)
    save_file({"prompt_embeddings": values}, tmp_path / "adapter_model.safetensors")
    given = load(tmp_path, dataclasses.replace(TARGET, kv_dtype=torch.float16)).virtual_tokens.keys_values
    assert torch.equal(given.flatten(), values.flatten())


def test_a_file_larger_than_any_adapter_of_the_model_is_not_read(tmp_path: Path) -> None:
    write_prompt_adapter(tmp_path)
    os.truncate(tmp_path / "adapter_model.safetensors", 2**40)
    with pytest.raises(AdapterError, match=r"has 1099511627776 bytes, but no adapter of this model has more than \d+"):
        load(tmp_path)


@pytest.mark.parametrize("content", ["[" * 100_000, '{"a":' * 100_000])
def test_a_configuration_that_is_nested_too_deeply(tmp_path: Path, content: str) -> None:
    write_prompt_adapter(tmp_path)
    (tmp_path / "adapter_config.json").write_text(content)
    with pytest.raises(AdapterError, match=r"adapter_config\.json is nested too deeply"):
        load(tmp_path)


@pytest.mark.parametrize("key", ["peft_type", "task_type", "token_dim", "base_model_name_or_path", "unheard_of"])
def test_messages_are_short_and_can_be_sent(tmp_path: Path, key: str) -> None:
    other_key = {} if key == "token_dim" else {"token_dim": 64}
    write_prompt_adapter(tmp_path, **{**other_key, key: "\ud800" * 10_000})
    with pytest.raises(AdapterError) as caught:
        load(tmp_path)
    assert len(str(caught.value).encode()) < 500


class Bomb:
    def __reduce__(self) -> Any:
        return (pytest.fail, ("a pickle was opened",))


@pytest.mark.parametrize("name", ["adapter_model.bin", "adapter_model.pt"])
def test_pickles_are_refused_and_not_opened(tmp_path: Path, name: str) -> None:
    write_prompt_adapter(tmp_path)
    (tmp_path / "adapter_model.safetensors").unlink()
    (tmp_path / name).write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(AdapterError, match=rf"holds only pickled weights \({name}\), which can run code"):
        load(tmp_path)


def test_a_pickle_by_the_name_of_safetensors_is_damaged(tmp_path: Path) -> None:
    write_prompt_adapter(tmp_path)
    (tmp_path / "adapter_model.safetensors").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(AdapterError, match="is damaged or cut off"):
        load(tmp_path)


def test_a_name_is_taken_until_it_is_unloaded(tmp_path: Path) -> None:
    registry = AdapterRegistry(TARGET)
    registry.load("a", write_prompt_adapter(tmp_path))
    with pytest.raises(AdapterError, match="'a' is loaded already, from "):
        registry.load("a", tmp_path)
    registry.withdraw("a")
    registry.load("a", tmp_path)


def test_equal_content_has_an_equal_hash_and_any_change_another(tmp_path: Path) -> None:
    registry = AdapterRegistry(TARGET)
    hashes = {
        name: registry.load(name, folder).content_hash
        for name, folder in {
            "one": write_prompt_adapter(tmp_path / "one"),
            "same": write_prompt_adapter(tmp_path / "same", base_model_name_or_path="elsewhere"),
            "values": write_prompt_adapter(tmp_path / "values", seed=1),
            "length": write_prompt_adapter(tmp_path / "length", num_tokens=19),
            "kind": write_prompt_adapter(tmp_path / "kind", peft_type="P_TUNING"),
        }.items()
    }
    assert hashes["one"] == hashes["same"]
    assert len(set(hashes.values())) == 4


def test_files_may_change_once_they_are_loaded(tmp_path: Path) -> None:
    adapter = load(write_prompt_adapter(tmp_path))
    before = adapter.virtual_tokens.embeddings.clone()
    path = tmp_path / "adapter_model.safetensors"
    with path.open("r+b") as file:  # the very bytes that a mapping would show
        file.seek(-64, 2)
        file.write(bytes(64))
    assert torch.equal(adapter.virtual_tokens.embeddings, before)
    assert before.shape == (20, MODEL.hidden_size)
