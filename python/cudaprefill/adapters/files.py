"""The files of one adapter, as PEFT saves them: adapter_config.json and adapter_model.safetensors.

Nothing is unpickled.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from cudaprefill.adapters.errors import AdapterError
from cudaprefill.models.errors import WeightsError
from cudaprefill.models.hf_config import read_json
from cudaprefill.models.pickled import say_what_is_missing
from cudaprefill.models.regular_file import check_regular_file

CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_MAX_HEADER = 100_000_000 + 8  # bytes that safetensors allows


def read_config(folder: Path) -> dict[str, Any]:
    """adapter_config.json. Raises AdapterError naming the file."""
    if not folder.is_dir():
        raise AdapterError(f"{folder} is not a folder")
    try:
        return read_json(folder / CONFIG)
    except WeightsError as error:
        raise AdapterError(str(error)) from None


def read_tensors(folder: Path, most_bytes: int) -> dict[str, Tensor]:
    """All tensors of adapter_model.safetensors by their names, as they are stored, in memory of their own.

    Raises AdapterError where the file is missing, damaged, cut off or longer than `most_bytes` and the most that its
    header may have, or where a tensor is of a type other than float32, bfloat16 and float16 or holds a value that is
    not finite.
    """
    path = folder / TENSORS
    tensors: dict[str, Tensor] = {}
    try:
        check_regular_file(path)
        size, most = path.stat().st_size, most_bytes + _MAX_HEADER
        if size > most:  # before there is an attempt to have it in memory
            raise AdapterError(f"{path} has {size} bytes, but no adapter of this model has more than {most}")
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118
                # The file may change later, and what was hashed must be what is used.
                tensors[name] = file.get_tensor(name).clone()
    except FileNotFoundError:
        remedy = "save the adapter anew with PEFT, which writes safetensors"
        raise AdapterError(say_what_is_missing(folder, f"no {TENSORS}", remedy)) from None
    except WeightsError as error:
        raise AdapterError(str(error)) from None
    except OSError as error:
        raise AdapterError(f"{path} cannot be read: {error.strerror}") from None
    except SafetensorError as error:
        raise AdapterError(f"{path} is damaged or cut off: {error}") from None
    for name, tensor in tensors.items():
        if tensor.dtype not in _DTYPES:
            raise AdapterError(
                f"{path}: tensor {name!r} is {tensor.dtype}, only float32, bfloat16 and float16 are read"
            )
        if not tensor.isfinite().all():
            raise AdapterError(f"{path}: tensor {name!r} holds values that are not finite")
    return tensors


def in_dtype(name: str, tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """The tensor, which is finite, rounded to `dtype`. Raises AdapterError where it is no longer finite there."""
    rounded = tensor.to(dtype)
    if not rounded.isfinite().all():
        largest = tensor.abs().max().item()
        raise AdapterError(
            f"{TENSORS}: tensor {name!r} holds {largest:.3g}, but is computed with in {dtype}, which ends at "
            f"{torch.finfo(dtype).max:.3g}"
        )
    return rounded


def content_hash(config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> bytes:
    """32 bytes that stand for the whole adapter: `config` is what of its configuration changes a result."""
    digest = hashlib.sha256()

    def add(part: bytes) -> None:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)

    add(json.dumps(config, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        add(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        add(tensor_bytes(tensor))
    return digest.digest()


def tensor_bytes(tensor: Tensor) -> bytes:
    """Its values, row by row."""
    return tensor.detach().contiguous().cpu().flatten().view(torch.uint8).numpy().tobytes()
