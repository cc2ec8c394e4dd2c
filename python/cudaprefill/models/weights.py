"""The decoder's tensors: which ones a configuration needs, and their fused copies in memory.

Each tensor is converted and copied from its file straight into its place in the fused weight, so the peak above the
final weights is one run of rows.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from cudaprefill import ops
from cudaprefill.huge_pages import HugePages
from cudaprefill.models.block_matrix import BlockMatrix, BlockRows, Matrix
from cudaprefill.models.config import ModelConfig
from cudaprefill.models.errors import WeightsError

Progress = Callable[[int, int], None]  # bytes read, bytes to read

EMBEDDING, FINAL_NORM, LM_HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"
_NOT_WEIGHTS = re.compile(r".*\.rotary_emb\.inv_freq")  # old checkpoints store what follows from the configuration


class TensorSource(Protocol):
    """The tensors of one checkpoint under their Hugging Face names."""

    shapes: dict[str, tuple[int, ...]]
    rope_factors: Tensor | None  # divides the inverse frequencies, [head_size / 2]

    def stored_name(self, name: str) -> str: ...  # what the file calls the tensor

    def stored_dtype(self, name: str) -> torch.dtype | None: ...  # None: quantised

    def block_format(self, name: str) -> int | None: ...  # its number in GGUF; None: not in blocks

    def num_bytes(self, name: str) -> int: ...

    def copy_into(self, name: str, out: Tensor) -> None: ...  # converts to the dtype and device of out

    def copy_blocks_into(self, name: str, out: Tensor) -> None: ...  # as stored, [rows, bytes of a row] uint8

    def close(self) -> None: ...


@dataclass(frozen=True)
class LayerWeights:
    """Matrices are [outputs, inputs] of the weight dtype or in blocks; norms and biases are of the activation dtype."""

    input_norm: Tensor  # [H]
    qkv: Matrix  # [(Hq + 2 * Hkv) * D, H]
    qkv_bias: Tensor | None
    q_norm: Tensor | None  # [D]
    k_norm: Tensor | None  # [D]
    o: Matrix  # [H, Hq * D]
    o_bias: Tensor | None
    post_attention_norm: Tensor  # [H]
    gate_up: Matrix  # [2 * I, H]
    gate_up_bias: Tensor | None
    down: Matrix  # [H, I]
    down_bias: Tensor | None


@dataclass(frozen=True)
class DecoderWeights:
    embedding: Matrix  # [V, H]
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor  # [H]
    lm_head: Matrix  # [V, H]; the embedding itself where they are tied


def expected_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor that a checkpoint of this configuration holds."""
    hidden, inner = config.hidden_size, config.intermediate_size
    q_size, kv_size = config.num_q_heads * config.head_size, config.num_kv_heads * config.head_size
    projections = {
        "self_attn.q_proj": (q_size, hidden, config.qkv_bias),
        "self_attn.k_proj": (kv_size, hidden, config.qkv_bias),
        "self_attn.v_proj": (kv_size, hidden, config.qkv_bias),
        "self_attn.o_proj": (hidden, q_size, config.o_bias),
        "mlp.gate_proj": (inner, hidden, config.mlp_bias),
        "mlp.up_proj": (inner, hidden, config.mlp_bias),
        "mlp.down_proj": (hidden, inner, config.mlp_bias),
    }
    tensors: dict[str, tuple[int, ...]] = {EMBEDDING: (config.vocab_size, hidden), FINAL_NORM: (hidden,)}
    if not config.tied_embeddings:
        tensors[LM_HEAD] = (config.vocab_size, hidden)
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}"
        tensors[f"{prefix}.input_layernorm.weight"] = (hidden,)
        tensors[f"{prefix}.post_attention_layernorm.weight"] = (hidden,)
        for name, (num_outputs, num_inputs, biased) in projections.items():
            tensors[f"{prefix}.{name}.weight"] = (num_outputs, num_inputs)
            if biased:
                tensors[f"{prefix}.{name}.bias"] = (num_outputs,)
        if config.qk_norm:
            tensors[f"{prefix}.self_attn.q_norm.weight"] = (config.head_size,)
            tensors[f"{prefix}.self_attn.k_norm.weight"] = (config.head_size,)
    return tensors


def check_tensors(config: ModelConfig, source: TensorSource) -> None:
    """Raises WeightsError naming what is missing, wrongly shaped or left over in the checkpoint."""
    last_norm = f"model.layers.{config.num_layers - 1}.input_layernorm.weight"
    if last_norm not in source.shapes:
        raise WeightsError(f"missing {_listed([source.stored_name(last_norm)])} of layer {config.num_layers}")
    expected = expected_tensors(config)
    if LM_HEAD in expected and LM_HEAD not in source.shapes:
        raise WeightsError(
            f"missing tensor {LM_HEAD!r}: tie_word_embeddings is false, so the embedding does not stand in for it"
        )
    missing = [source.stored_name(name) for name in expected if name not in source.shapes]
    if missing:
        raise WeightsError(f"missing {_listed(missing)}")
    for name, shape in expected.items():
        if source.shapes[name] != shape:
            raise WeightsError(
                f"tensor {source.stored_name(name)!r} must have the shape {shape}, got {source.shapes[name]}"
            )
    unused = {LM_HEAD} if config.tied_embeddings else set()
    unexpected = [
        name for name in source.shapes if name not in expected and name not in unused and not _NOT_WEIGHTS.match(name)
    ]
    if unexpected:
        raise WeightsError(f"unexpected {_listed(unexpected)} in a {config.family} model")


def load_weights(
    config: ModelConfig,
    source: TensorSource,
    dtype: torch.dtype,
    activation_dtype: torch.dtype,
    device: torch.device,
    progress: Progress | None = None,
    keep_blocks: bool = False,
) -> DecoderWeights:
    """Reads every tensor of a checked source once; `progress` is called after each.

    keep_blocks: leave matrices that the file holds in blocks as they are, for the ops that multiply by them on a CPU.
    """
    names = expected_tensors(config)
    done, total = 0, sum(source.num_bytes(name) for name in names)

    def size_of(name: str, shape: tuple[int, ...]) -> int:
        """Room for a tensor in either form: those that are fused are kept in blocks together or not at all."""
        blocks = source.num_bytes(name) if keep_blocks and _in_blocks(source, name) else 0
        beside = any(not _in_blocks(source, other) for other in _fused_with(name) if other in names)
        if blocks and not beside:
            return HugePages.size_of((blocks,), torch.uint8)
        return HugePages.size_of(shape, dtype if len(shape) > 1 else activation_dtype)

    pages = HugePages(sum(size_of(*item) for item in names.items())) if device.type == "cpu" else None

    def empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return pages.empty(shape, dtype) if pages is not None else torch.empty(shape, dtype=dtype, device=device)

    def read(part: str) -> None:
        nonlocal done
        done += source.num_bytes(part)
        if progress is not None:
            progress(done, total)

    def values(*parts: str, dtype: torch.dtype = dtype) -> Tensor:
        """The tensors `parts`, one below the other."""
        num_rows = [names[part][0] for part in parts]
        fused = empty((sum(num_rows), *names[parts[0]][1:]), dtype)
        for part, rows in zip(parts, torch.split(fused, num_rows), strict=True):
            source.copy_into(part, rows)
            read(part)
        return fused

    def vector(*parts: str) -> Tensor:
        return values(*parts, dtype=activation_dtype)

    def matrix(*parts: str) -> Matrix:
        if not keep_blocks or not all(_in_blocks(source, part) for part in parts):
            return values(*parts)
        num_inputs = names[parts[0]][1]
        runs: list[BlockRows] = []
        for block_format, run in itertools.groupby(parts, source.block_format):
            of_run = list(run)
            num_rows = [names[part][0] for part in of_run]
            blocks = empty((sum(num_rows), source.num_bytes(of_run[0]) // num_rows[0]), torch.uint8)
            for part, rows in zip(of_run, torch.split(blocks, num_rows), strict=True):
                source.copy_blocks_into(part, rows)
                read(part)
            assert block_format is not None
            runs.append(BlockRows(blocks, block_format))
        return BlockMatrix(tuple(runs), num_inputs)

    def layer(number: int) -> LayerWeights:
        prefix = f"model.layers.{number}"
        qkv = [f"{prefix}.self_attn.{part}_proj" for part in "qkv"]
        o, down = f"{prefix}.self_attn.o_proj", f"{prefix}.mlp.down_proj"
        gate_up = [f"{prefix}.mlp.gate_proj", f"{prefix}.mlp.up_proj"]
        return LayerWeights(
            input_norm=vector(f"{prefix}.input_layernorm.weight"),
            qkv=matrix(*(f"{part}.weight" for part in qkv)),
            qkv_bias=vector(*(f"{part}.bias" for part in qkv)) if config.qkv_bias else None,
            q_norm=vector(f"{prefix}.self_attn.q_norm.weight") if config.qk_norm else None,
            k_norm=vector(f"{prefix}.self_attn.k_norm.weight") if config.qk_norm else None,
            o=matrix(f"{o}.weight"),
            o_bias=vector(f"{o}.bias") if config.o_bias else None,
            post_attention_norm=vector(f"{prefix}.post_attention_layernorm.weight"),
            gate_up=matrix(*(f"{part}.weight" for part in gate_up)),
            gate_up_bias=vector(*(f"{part}.bias" for part in gate_up)) if config.mlp_bias else None,
            down=matrix(f"{down}.weight"),
            down_bias=vector(f"{down}.bias") if config.mlp_bias else None,
        )

    embedding = matrix(EMBEDDING)
    return DecoderWeights(
        embedding=embedding,
        layers=tuple(layer(number) for number in range(config.num_layers)),
        final_norm=vector(FINAL_NORM),
        lm_head=embedding if config.tied_embeddings else matrix(LM_HEAD),
    )


def _in_blocks(source: TensorSource, name: str) -> bool:
    return source.block_format(name) in ops.BLOCK_FORMATS


_FUSED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


def _fused_with(name: str) -> list[str]:
    """The tensors that share a matrix with this one, itself among them."""
    for group in _FUSED:
        for part in group:
            if part in name:
                return [name.replace(part, other) for other in group]
    return [name]


def _listed(names: list[str], most: int = 5) -> str:
    shown = ", ".join(map(repr, names[:most]))
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"tensor{'s' if len(names) > 1 else ''} {shown}{more}"
