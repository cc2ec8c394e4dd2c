"""The tensors of a GGUF file under the names and in the row order of a Hugging Face checkpoint."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import gguf
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cudaprefill.models.config import ModelConfig
from cudaprefill.models.errors import WeightsError
from cudaprefill.models.gguf import GgufFile, GgufTensor

_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_ROPE_FACTORS = "rope_freqs.weight"
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
        self._tensors = {_hf_name(name): tensor for name, tensor in file.tensors.items() if name != _ROPE_FACTORS}
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
        return self._tensors[name].name if name in self._tensors else _gguf_name(name)

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

    def copy_blocks_into(self, name: str, out: Tensor) -> None:
        rows, order = self._tensors[name].rows, self._row_order(name)
        out.numpy()[...] = rows if order is None else rows[order]

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

    def _row_order(self, name: str) -> npt.NDArray[np.intp] | None:
        """The row of the file for each row of the Hugging Face tensor; None where they are the same.

        Files of the llama architecture hold each head of q and k with its two rotated halves interleaved.
        """
        config = self._config
        projection = name.split(".")[-2]
        if config.family != "llama" or projection not in ("q_proj", "k_proj"):
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


def _hf_name(name: str) -> str:
    """The Hugging Face name of a file's tensor; a tensor that has none keeps its own."""
    match = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias)", name)
    if match:
        layer, part, kind = match.groups()
        if layer is None and part in _NAMES:
            return f"{_NAMES[part]}.{kind}"
        if layer is not None and part in _LAYER_NAMES:
            return f"model.layers.{layer}.{_LAYER_NAMES[part]}.{kind}"
    return name


def _gguf_name(name: str) -> str:
    """The inverse of `_hf_name`."""
    stem, kind = name.rsplit(".", 1)
    match = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", stem)
    names = {hf: part for part, hf in (_LAYER_NAMES if match else _NAMES).items()}
    return f"blk.{match[1]}.{names[match[2]]}.{kind}" if match else f"{names[stem]}.{kind}"
