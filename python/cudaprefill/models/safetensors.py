"""The tensors of a Hugging Face folder: model.safetensors, or the shards that model.safetensors.index.json lists."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from cudaprefill.models.errors import WeightsError
from cudaprefill.models.hf_config import read_json
from cudaprefill.models.pickled import say_what_is_missing
from cudaprefill.models.regular_file import check_regular_file

_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


class SafetensorsSource:
    """A TensorSource over memory-mapped files.

    Raises WeightsError where a file or a listed tensor is missing, a file is damaged or cut off, a tensor has a type
    other than float32, bfloat16 and float16, or the folder holds only pickled weights, which are never opened.
    """

    rope_factors: Tensor | None = None

    def __init__(self, folder: Path) -> None:
        self._files: dict[str, Any] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._dtypes: dict[str, torch.dtype] = {}
        index = folder / "model.safetensors.index.json"
        single = folder / "model.safetensors"
        if single.exists():
            self._add_file(single)
        elif index.exists():
            weight_map = read_json(index).get("weight_map")
            if not isinstance(weight_map, dict):
                raise WeightsError(f"{index}: weight_map must be an object, got {weight_map!r}")
            for shard in sorted(set(map(str, weight_map.values()))):
                self._add_file(folder / shard)
            for name, shard in weight_map.items():
                if name not in self.shapes:
                    raise WeightsError(f"{index.name} lists tensor {name!r} in {shard}, which does not hold it")
        else:
            missing = "neither model.safetensors nor model.safetensors.index.json"
            raise WeightsError(say_what_is_missing(folder, missing, "convert them to safetensors"))

    def stored_name(self, name: str) -> str:
        return name

    def stored_dtype(self, name: str) -> torch.dtype | None:
        return self._dtypes[name]

    def block_format(self, name: str) -> int | None:
        return None

    def num_bytes(self, name: str) -> int:
        return torch.Size(self.shapes[name]).numel() * self._dtypes[name].itemsize

    def copy_into(self, name: str, out: Tensor) -> None:
        out.copy_(self._files[name].get_tensor(name))

    def copy_blocks_into(self, name: str, out: Tensor) -> None:
        raise WeightsError(f"tensor {name!r} is not stored in blocks")

    def close(self) -> None:
        self._files.clear()

    def _add_file(self, path: Path) -> None:
        try:
            check_regular_file(path)
            file: Any = safe_open(path, framework="pt")
        except FileNotFoundError:
            raise WeightsError(f"{path} does not exist") from None
        except SafetensorError as error:
            raise WeightsError(f"{path} is damaged or cut off: {error}") from None
        for name in file.keys():  # noqa: SIM118
            stored = file.get_slice(name)
            dtype = stored.get_dtype()
            if dtype not in _DTYPES:
                raise WeightsError(f"{path}: tensor {name!r} is stored as {dtype}, only {', '.join(_DTYPES)} are read")
            if name in self._files:
                raise WeightsError(f"{path}: tensor {name!r} is in another shard as well")
            self._files[name] = file
            self._dtypes[name] = _DTYPES[dtype]
            self.shapes[name] = tuple(stored.get_shape())
