"""The tensors of a GGUF file under the names and in the row order of a Hugging Face checkpoint."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import gguf
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cudaprefill.models.checkpoint_names import CheckpointNames
from cudaprefill.models.config import ModelConfig
from cudaprefill.models.errors import WeightsError
from cudaprefill.models.gguf import GgufFile, GgufTensor
from cudaprefill.models.gguf_config import LONG_FACTORS, SHORT_FACTORS

_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_ROPE_FACTORS = "rope_freqs.weight"
_NOT_WEIGHTS = {_ROPE_FACTORS, LONG_FACTORS, SHORT_FACTORS}
_STORED_DTYPES = {
    gguf.GGMLQuantizationType.F32: torch.float32,
    gguf.GGMLQuantizationType.F16: torch.float16,
    gguf.GGMLQuantizationType.BF16: torch.bfloat16,
}
# Dequantised at a time by one thread: few enough for its cache, many enough to pay for the call.
_RUN_ELEMENTS = 1 << 17


class GgufSource:
    """A TensorSource that dequantises on the way. Raises WeightsError for a quantisation that cannot be undone."""

    def __init__(self, file: GgufFile, config: ModelConfig) -> None:
        self._file = file
        self._names = _layer_names(config.names)
        self._expert_names = _expert_names(config.names)
        self._tensors: dict[str, GgufTensor] = {}
        for name, tensor in file.tensors.items():
            if name not in _NOT_WEIGHTS:
                self._tensors |= self._by_hf_name(name, tensor)
        self._config = config
        self._num_threads = torch.get_num_threads()
        self._threads = ThreadPoolExecutor(self._num_threads, thread_name_prefix="dequantise")
        self.shapes = {name: tensor.shape for name, tensor in self._tensors.items()}
        self.rope_factors: Tensor | None = None
        if _ROPE_FACTORS in file.tensors:
            factors = file.tensors[_ROPE_FACTORS]
            if factors.shape != (config.head_size // 2,):
                raise WeightsError(
                    f"tensor {_ROPE_FACTORS!r} must have the shape {(config.head_size // 2,)}, got {factors.shape}"
                )
            self.rope_factors = torch.from_numpy(factors.dequantise(factors.rows).flatten())

    def stored_name(self, name: str) -> str:
        return self._tensors[name].name if name in self._tensors else self._gguf_name(name)

    def stored_dtype(self, name: str) -> torch.dtype | None:
        return _STORED_DTYPES.get(self._tensors[name].quantisation)

    def block_format(self, name: str) -> int | None:
        tensor = self._tensors[name]
        return None if len(tensor.shape) == 1 or tensor.quantisation in _STORED_DTYPES else int(tensor.quantisation)

    def num_bytes(self, name: str) -> int:
        return self._tensors[name].rows.nbytes

    def copy_into(self, name: str, out: Tensor) -> None:
        tensor, order = self._tensors[name], self._row_order(name)
        on_host = out if out.device.type == "cpu" else torch.empty_like(out, device="cpu")
        if len(tensor.shape) == 1:
            values = tensor.dequantise(tensor.rows)[0]
            _assign(on_host, values if order is None else values[order])
        else:
            self._dequantise_into(on_host, tensor, order)
        if on_host is not out:
            out.copy_(on_host)
        self._file.let_go(tensor)

    def copy_blocks_into(self, name: str, out: Tensor) -> None:
        tensor, order = self._tensors[name], self._row_order(name)
        out.numpy()[...] = tensor.rows if order is None else tensor.rows[order]
        self._file.let_go(tensor)

    def close(self) -> None:
        self._threads.shutdown()

    def _dequantise_into(self, out: Tensor, tensor: GgufTensor, order: npt.NDArray[np.intp] | None) -> None:
        """Runs of rows, each by one thread. NumPy alone: a torch copy in each thread would start a team of its own."""
        num_rows, run = tensor.rows.shape[0], max(1, _RUN_ELEMENTS // tensor.shape[-1])

        def dequantise(start: int) -> None:
            rows = slice(start, start + run) if order is None else order[start : start + run]
            _assign(out[start : start + run], tensor.dequantise(tensor.rows[rows]))

        if num_rows <= run:
            dequantise(0)
        else:
            list(self._threads.map(dequantise, range(0, num_rows, run)))

    def _by_hf_name(self, name: str, tensor: GgufTensor) -> dict[str, GgufTensor]:
        """A tensor of the file under its Hugging Face name, or that of each expert under its own.

        A tensor that has no such name keeps the one of the file.
        """
        match = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias)", name)
        if match is None:
            return {name: tensor}
        layer, part, kind = match.groups()
        if layer is None:
            return {f"{_NAMES[part]}.{kind}" if part in _NAMES else name: tensor}
        if part in self._names:
            return {f"model.layers.{layer}.{self._names[part]}.{kind}": tensor}
        if part not in self._expert_names or len(tensor.shape) != 3:
            return {name: tensor}
        experts, outputs, inputs = tensor.shape
        rows = tensor.rows.reshape(experts, outputs, -1)
        return {
            f"model.layers.{layer}.{self._expert_names[part].format(number)}.{kind}": replace(
                tensor, shape=(outputs, inputs), rows=rows[number]
            )
            for number in range(experts)
        }

    def _gguf_name(self, name: str) -> str:
        """What the file would call a tensor that it lacks."""
        stem, kind = name.rsplit(".", 1)
        match = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", stem)
        if match is None:
            parts = {hf: part for part, hf in _NAMES.items()}
            return f"{parts[stem]}.{kind}"
        layer, of_layer = match.groups()
        of_any_expert = re.sub(r"experts\.\d+", "experts.{}", of_layer)
        parts = {hf: part for part, hf in {**self._names, **self._expert_names}.items()}
        return f"blk.{layer}.{parts[of_any_expert]}.{kind}"

    def _row_order(self, name: str) -> npt.NDArray[np.intp] | None:
        """The row of the file for each row of the Hugging Face tensor; None where they are the same.

        Files of the llama architecture hold each head of q and k with its two rotated halves interleaved.
        """
        config = self._config
        projection = name.split(".")[-2]
        if config.family not in ("llama", "mixtral") or projection not in ("q_proj", "k_proj"):
            return None
        num_heads = config.num_q_heads if projection == "q_proj" else config.num_kv_heads
        rows = np.arange(num_heads * config.head_size).reshape(num_heads, config.head_size // 2, 2)
        order: npt.NDArray[np.intp] = rows.swapaxes(1, 2).reshape(-1)
        return order


def _assign(out: Tensor, values: npt.NDArray[np.float32]) -> None:
    """Rounds `values` to the dtype of `out`, a tensor in host memory, as torch does: to infinity beyond the largest."""
    if out.dtype != torch.bfloat16:
        with np.errstate(over="ignore"):
            out.numpy()[...] = values
        return
    bits = values.view(np.uint32)
    to_nearest_even = (bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16
    out.view(torch.uint16).numpy()[...] = np.where(np.isnan(values), np.uint32(0x7FC0), to_nearest_even)


def _layer_names(names: CheckpointNames) -> dict[str, str]:
    """The Hugging Face name of each part of a layer, by its name in GGUF files."""
    qkv = ("attn_q", "attn_k", "attn_v") if len(names.qkv) == 3 else ("attn_qkv",)
    gate_up = ("ffn_gate", "ffn_up") if len(names.gate_up) == 2 else ("ffn_up",)
    parts = {
        "attn_norm": names.attention_norm,
        **dict(zip(qkv, names.qkv, strict=True)),
        "attn_q_norm": names.q_norm,
        "attn_k_norm": names.k_norm,
        "attn_output": names.o,
        "post_attention_norm": names.attention_output_norm,
        "ffn_norm": names.feed_forward_norm,
        **dict(zip(gate_up, names.gate_up, strict=True)),
        "ffn_down": names.down,
        "post_ffw_norm": names.feed_forward_output_norm,
        "ffn_gate_inp": names.router,
    }
    return {part: name for part, name in parts.items() if name}


def _expert_names(names: CheckpointNames) -> dict[str, str]:
    """The same for what files hold of all experts in one tensor, [experts, outputs, inputs]."""
    gate, up = names.expert_gate_up
    return {"ffn_gate_exps": gate, "ffn_up_exps": up, "ffn_down_exps": names.expert_down}
