"""A damaged or foreign GGUF file, or one of what is not computed, is refused, and the message names what is wrong."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cudaprefill.models import (
    UnsupportedModelError,
    WeightsError,
    load_model,
    read_model_config,
)
from cudaprefill.models.gguf import GgufFile
from tests.models.gguf_files import write_gguf
from tests.models.tiny import tiny_model

REFUSED: dict[str, tuple[Callable[[gguf.GGUFWriter], Any], str]] = {
    "experts": (lambda writer: writer.add_expert_count(8), "expert_used_count is missing"),
    "more chosen": (
        lambda writer: (writer.add_expert_count(8), writer.add_expert_used_count(9)),
        r"a token must choose 1 \.\. 8 experts, got 9",
    ),
    "unknown key": (lambda writer: writer.add_logit_scale(0.5), r"llama\.logit_scale = 0.5 is unknown"),
    "partial rotary": (lambda writer: writer.add_rope_dimension_count(32), "rope.dimension_count = 32.*only 64"),
    "rope type": (
        lambda writer: (
            writer.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE),
            writer.add_rope_scaling_factor(2.0),
        ),
        "longrope",
    ),
    "split": (lambda writer: writer.add_uint16("split.count", 3), "split.count = 3"),
    "alignment": (lambda writer: writer.add_uint32("general.alignment", 24), "general.alignment.*24"),
    "layers differ": (
        lambda writer: writer.add_array("llama.attention.sliding_window", [32, 64]),
        r"\[32, 64\] differs among the layers",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_computed_is_refused_by_name(tmp_path: Path, case: str) -> None:
    metadata, message = REFUSED[case]
    write_gguf(tmp_path / "model.gguf", tiny_model("llama"), metadata=metadata)
    with pytest.raises((UnsupportedModelError, WeightsError), match=message):
        load_model(tmp_path / "model.gguf")


def test_another_architecture_is_refused_by_name(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "gemma")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(UnsupportedModelError, match=r"general\.architecture = 'gemma'"):
        read_model_config(tmp_path / "model.gguf")


def test_an_unexpected_tensor_is_named_as_in_the_file(tmp_path: Path) -> None:
    metadata = lambda writer: writer.add_tensor("blk.0.ffn_gate_exps.weight", np.zeros((2, 32), np.float32))  # noqa: E731
    write_gguf(tmp_path / "model.gguf", tiny_model("llama"), metadata=metadata)
    with pytest.raises(WeightsError, match=r"unexpected tensor 'blk\.0\.ffn_gate_exps\.weight'"):
        load_model(tmp_path / "model.gguf")


def test_a_tensor_of_integers_is_refused(tmp_path: Path) -> None:
    model = tiny_model("llama")
    norm = model.model.norm.weight
    del model.model.norm.weight
    metadata = lambda writer: writer.add_tensor("output_norm.weight", norm.detach().int().numpy())  # noqa: E731
    write_gguf(tmp_path / "model.gguf", model, metadata=metadata)
    with pytest.raises(WeightsError, match=r"'output_norm\.weight' is stored as I32"):
        load_model(tmp_path / "model.gguf")


def test_rope_freqs_of_another_size_are_refused(tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf", tiny_model("llama"), rope_factors=np.ones(16))
    with pytest.raises(WeightsError, match=r"'rope_freqs\.weight' must have the shape \(32,\), got \(16,\)"):
        load_model(tmp_path / "model.gguf")


def test_a_missing_tensor_is_named_as_in_the_file(tmp_path: Path) -> None:
    model = tiny_model("llama")
    model.config.num_hidden_layers = 3
    write_gguf(tmp_path / "model.gguf", model)
    with pytest.raises(WeightsError, match=r"missing tensor 'blk\.2\.attn_norm\.weight' of layer 3"):
        load_model(tmp_path / "model.gguf")


@pytest.fixture(scope="module")
def whole_file(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    write_gguf(path, tiny_model("llama", vocab_size=32))
    return path.read_bytes()


@settings(max_examples=200, deadline=None)
@given(share=st.floats(0, 1, exclude_max=True) | st.floats(0, 0.02))
def test_a_file_cut_off_anywhere_is_refused(
    tmp_path_factory: pytest.TempPathFactory, whole_file: bytes, share: float
) -> None:
    path = tmp_path_factory.getbasetemp() / "cut.gguf"
    path.write_bytes(whole_file[: int(share * len(whole_file))])
    with pytest.raises(WeightsError, match=r"cut\.gguf"):
        GgufFile(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"PK\x03\x04 and so on", "is not a GGUF file: it begins with b'PK"),
        (b"GGUF\x00\x00\x00\x03", "is a big-endian file"),
        (b"GGUF\x01\x00\x00\x00", "is version 1"),
    ],
)
def test_other_files_are_told_apart(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(WeightsError, match=message):
        load_model(path)


def test_a_pipe_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.gguf")
    with pytest.raises(WeightsError, match=r"model\.gguf is not a file"):
        read_model_config(tmp_path / "model.gguf")
