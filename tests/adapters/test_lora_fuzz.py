"""Whatever is wrong with the files of an adapter: it is loaded, or refused by our own error, which names a file."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cudaprefill.adapters import AdapterError, AdapterRegistry, AdapterTarget
from cudaprefill.models import read_model_config
from tests.adapters.lora_adapters import lora
from tests.adapters.peft_adapters import save_adapter
from tests.models.damage import at_most_more_memory, damaged, nothing_is_left_open
from tests.models.tiny import save_tiny_model

CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"
ABSURD: list[Any] = [
    *(None, True, "", "x" * 3000, "(", "all-linear", [], [[]], {}, {"q_proj": []}),
    *(-1, 0, 1, 2**31, 2**63, 10**400, -0.5, 1e300, float("nan"), float("inf")),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    base = save_tiny_model(folder, "llama")
    save_adapter(folder / "good", base, lora(4, target_modules=["q_proj", "down_proj"]))
    return folder


@pytest.fixture(scope="module")
def registry(folder: Path) -> AdapterRegistry:
    dtype = torch.float32
    return AdapterRegistry(AdapterTarget(read_model_config(folder), torch.device("cpu"), dtype, dtype, 256))


def refusal(registry: AdapterRegistry, folder: Path, name: str, content: bytes) -> str | None:
    """What loading an adapter says in which one file has this content; None: it is loaded."""
    bad = folder / "bad"
    shutil.copytree(folder / "good", bad, dirs_exist_ok=True)
    (bad / name).write_bytes(content)
    said = None
    with at_most_more_memory(1 << 30):
        try:
            registry.load("bad", bad)
        except AdapterError as error:
            said = str(error)
    if said is None:
        registry.withdraw("bad").unload()
    for file in (CONFIG, TENSORS):
        nothing_is_left_open(bad / file)
    return said


def assert_names_a_file(said: str | None) -> None:
    assert said is None or CONFIG in said or TENSORS in said


def test_the_whole_adapter_is_loaded(registry: AdapterRegistry, folder: Path) -> None:
    assert refusal(registry, folder, CONFIG, (folder / "good" / CONFIG).read_bytes()) is None


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_values_of_the_configuration_are_absurd(registry: AdapterRegistry, folder: Path, data: st.DataObject) -> None:
    values = json.loads((folder / "good" / CONFIG).read_text())
    for _ in range(data.draw(st.integers(1, 2))):
        values[data.draw(st.sampled_from(sorted(values)))] = data.draw(st.sampled_from(ABSURD))
    assert_names_a_file(refusal(registry, folder, CONFIG, json.dumps(values).encode()))


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_bytes_are_changed_lost_and_added(registry: AdapterRegistry, folder: Path, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from([CONFIG, TENSORS]))
    content = (folder / "good" / name).read_bytes()
    head = len(content) if name == CONFIG else 8 + struct.unpack_from("<Q", content)[0]
    assert_names_a_file(refusal(registry, folder, name, damaged(data, content, head)))


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_the_header_of_the_tensors_is_absurd(registry: AdapterRegistry, folder: Path, data: st.DataObject) -> None:
    content = (folder / "good" / TENSORS).read_bytes()
    (length,) = struct.unpack_from("<Q", content)
    header = json.loads(content[8 : 8 + length])
    tensors = bytearray(content[8 + length :])
    infos = [header[name] for name in sorted(header) if name != "__metadata__"]
    number = st.sampled_from([0, 1, 3, -1, 2**31, 2**40, 2**63 - 1, 2**64, 0.5])
    for _ in range(data.draw(st.integers(1, 2))):
        info = data.draw(st.sampled_from(infos))
        match data.draw(st.sampled_from(["shape", "dimensions", "dtype", "offsets", "name", "not finite", "length"])):
            case "shape":
                shape = info["shape"] or [1]
                shape[data.draw(st.sampled_from([0, -1]))] = data.draw(number)
                info["shape"] = shape
            case "dimensions":
                info["shape"] = data.draw(st.sampled_from([[], [1] * 70, [2**40, 2**40, 0], info["shape"][::-1]]))
            case "dtype":
                info["dtype"] = data.draw(st.sampled_from(["BF16", "F64", "I8", "BOOL", "F8_E4M3", "NONE"]))
            case "offsets":
                info["data_offsets"][data.draw(st.sampled_from([0, 1]))] = data.draw(number)
            case "name":
                header[data.draw(st.sampled_from(["", "x", "base_model.model.lora_A.weight"]))] = info
            case "not finite":
                value = data.draw(st.sampled_from([float("nan"), float("inf")]))
                struct.pack_into("<f", tensors, data.draw(st.integers(0, len(tensors) // 4 - 1)) * 4, value)
            case "length":
                length = data.draw(st.sampled_from([0, 1, 2**31, 2**63, 2**64 - 1]))
    text = json.dumps(header).encode()
    if length == struct.unpack_from("<Q", content)[0]:
        length = len(text)
    said = refusal(registry, folder, TENSORS, struct.pack("<Q", length) + text + tensors)
    assert_names_a_file(said)
