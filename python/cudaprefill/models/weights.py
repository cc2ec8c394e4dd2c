"""The decoder's tensors: which ones a configuration needs, and their fused copies in memory.

Each tensor is converted and copied from its file straight into its place in the fused weight, so the peak above the
final weights is one run of rows.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from cudaprefill import ops
from cudaprefill.huge_pages import HugePages
from cudaprefill.models import kv_scales
from cudaprefill.models.block_matrix import BlockMatrix, BlockRows, Matrix
from cudaprefill.models.config import ModelConfig
from cudaprefill.models.errors import WeightsError

Progress = Callable[[int, int], None]  # bytes read, bytes to read

LOGITS_ACTIVATION_BITS = 16
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

    attention_norm: Tensor  # [H]
    qkv: Matrix  # [(Hq + 2 * Hkv) * D, H]
    qkv_bias: Tensor | None
    q_norm: Tensor | None  # [D]
    k_norm: Tensor | None  # [D]
    o: Matrix  # [H, Hq * D]
    o_bias: Tensor | None
    attention_output_norm: Tensor | None  # [H], before the residual
    feed_forward_norm: Tensor  # [H]
    gate_up: Matrix  # [2 * I, H]
    gate_up_bias: Tensor | None
    down: Matrix  # [H, I]
    down_bias: Tensor | None
    feed_forward_output_norm: Tensor | None  # [H], before the residual
    router: Matrix | None = None  # [E, H]; then gate_up and down hold E experts, one below the other


@dataclass(frozen=True)
class DecoderWeights:
    embedding: Matrix  # [V, H]
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor  # [H]
    lm_head: Matrix  # [V, H]; the embedding itself where they are tied
    kv_scales: Tensor | None = None  # [L, 2, Hkv] float32, of a float8 KV cache; None: the checkpoint has none


@dataclass(frozen=True)
class StoredMatrix:
    """A matrix of a layer as checkpoints hold it: parts that lie one below the other."""

    parts: tuple[str, ...]  # names, without .weight
    rows: tuple[int, ...]  # of each part
    num_inputs: int
    biased: bool = False


def stored_matrices(config: ModelConfig, layer: int) -> dict[str, StoredMatrix]:
    """By the field of LayerWeights."""
    names, hidden, experts = config.names, config.hidden_size, config.layers[layer].experts
    q_size, kv_size = config.num_q_heads * config.head_size, config.num_kv_heads * config.head_size

    def stored(parts: tuple[str, ...], rows: tuple[int, ...], num_inputs: int, biased: bool = False) -> StoredMatrix:
        if len(parts) == 1:
            rows = (sum(rows),)
        return StoredMatrix(tuple(f"model.layers.{layer}.{part}" for part in parts), rows, num_inputs, biased)

    matrices = {
        "qkv": stored(names.qkv, (q_size, kv_size, kv_size), hidden, config.qkv_bias),
        "o": stored((names.o,), (hidden,), q_size, config.o_bias),
    }
    if experts is None:
        inner = config.intermediate_size
        matrices["gate_up"] = stored(names.gate_up, (inner, inner), hidden, config.mlp_bias)
        matrices["down"] = stored((names.down,), (hidden,), inner, config.mlp_bias)
    else:
        count, inner = experts.num_experts, experts.intermediate_size
        gate_up = [part.format(number) for number in range(count) for part in names.expert_gate_up]
        down = [names.expert_down.format(number) for number in range(count)]
        matrices["router"] = stored((names.router,), (count,), hidden)
        matrices["gate_up"] = StoredMatrix(
            tuple(f"model.layers.{layer}.{part}" for part in gate_up), (inner,) * len(gate_up), hidden
        )
        matrices["down"] = StoredMatrix(
            tuple(f"model.layers.{layer}.{part}" for part in down), (hidden,) * count, inner
        )
    return matrices


def _stored_norms(config: ModelConfig, layer: int) -> dict[str, tuple[str, int]]:
    """Name and size of each norm, by the field of LayerWeights."""
    names, hidden, head = config.names, config.hidden_size, config.head_size
    norms = {"attention_norm": (names.attention_norm, hidden), "feed_forward_norm": (names.feed_forward_norm, hidden)}
    if config.qk_norm:
        norms |= {"q_norm": (names.q_norm, head), "k_norm": (names.k_norm, head)}
    if config.output_norms:
        norms["attention_output_norm"] = (names.attention_output_norm, hidden)
        norms["feed_forward_output_norm"] = (names.feed_forward_output_norm, hidden)
    return {field: (f"model.layers.{layer}.{name}.weight", size) for field, (name, size) in norms.items()}


def expected_tensors(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor that a checkpoint of this configuration holds."""
    hidden = config.hidden_size
    tensors: dict[str, tuple[int, ...]] = {EMBEDDING: (config.vocab_size, hidden), FINAL_NORM: (hidden,)}
    if not config.tied_embeddings:
        tensors[LM_HEAD] = (config.vocab_size, hidden)
    for layer in range(config.num_layers):
        tensors |= {name: (size,) for name, size in _stored_norms(config, layer).values()}
        for matrix in stored_matrices(config, layer).values():
            for part, rows in zip(matrix.parts, matrix.rows, strict=True):
                tensors[f"{part}.weight"] = (rows, matrix.num_inputs)
                if matrix.biased:
                    tensors[f"{part}.bias"] = (rows,)
    return tensors


def check_tensors(config: ModelConfig, source: TensorSource) -> None:
    """Raises WeightsError naming what is missing, wrongly shaped or left over in the checkpoint."""
    last_norm, _ = _stored_norms(config, config.num_layers - 1)["attention_norm"]
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
        name
        for name in source.shapes
        if name not in expected
        and name not in unused
        and not _NOT_WEIGHTS.fullmatch(name)
        and not kv_scales.is_scale(name)
    ]
    if unexpected:
        raise WeightsError(f"unexpected {_listed(unexpected)} in a {config.family} model")
    kv_scales.check_scales(config, source.shapes)


def load_weights(
    config: ModelConfig,
    source: TensorSource,
    dtype: torch.dtype,
    activation_dtype: torch.dtype,
    device: torch.device,
    progress: Progress | None = None,
    keep_blocks: bool = False,
    activation_bits: int = 32,
) -> DecoderWeights:
    """Reads every tensor of a checked source once; `progress` is called after each.

    keep_blocks: leave matrices that the file holds in blocks in these, for the ops that multiply by them on a CPU.
    activation_bits: what those ops round activations to, for the logits LOGITS_ACTIVATION_BITS at least; 32: nothing.
    """
    names = expected_tensors(config)
    layers = [stored_matrices(config, number) for number in range(config.num_layers)]
    done, total = 0, sum(source.num_bytes(name) for name in names)

    def weights_of(matrix: StoredMatrix) -> list[str]:
        return [f"{part}.weight" for part in matrix.parts]

    mixed: set[str] = set()  # experts that are stored in several formats, which one product cannot read
    for layer_config, stored in zip(config.layers, layers, strict=True):
        parts_of = [weights_of(stored[field]) for field in ("gate_up", "down") if layer_config.experts is not None]
        formats = [{source.block_format(part) for part in parts} for parts in parts_of]
        if any(len(of) > 1 or not of <= ops.BLOCK_FORMATS.keys() for of in formats):
            mixed |= {part for parts in parts_of for part in parts}

    def stays_in_blocks(*parts: str) -> bool:
        """Those that are fused are kept in blocks together or not at all."""
        in_blocks = all(source.block_format(part) in ops.BLOCK_FORMATS for part in parts)
        return keep_blocks and in_blocks and mixed.isdisjoint(parts)

    def groups_shape(*parts: str) -> tuple[int, int]:
        """Of parts of one format, one below the other, as the kernels read them."""
        num_rows, num_inputs = sum(names[part][0] for part in parts), names[parts[0]][1]
        block_format = source.block_format(parts[0])
        assert block_format is not None
        return ops.BLOCK_FORMATS[block_format].groups_shape(num_rows, num_inputs)

    def size_of(parts: list[str]) -> int:
        if stays_in_blocks(*parts):
            return sum(HugePages.size_of(groups_shape(part), torch.uint8) for part in parts)
        return sum(HugePages.size_of(names[part], dtype) for part in parts)

    matrices = [weights_of(matrix) for layer in layers for matrix in layer.values()]
    matrices += [[name] for name in (EMBEDDING, LM_HEAD) if name in names]
    vectors = [shape for shape in names.values() if len(shape) == 1]
    pages: HugePages | None = None
    if device.type == "cpu":
        vector_bytes = sum(HugePages.size_of(shape, activation_dtype) for shape in vectors)
        pages = HugePages(sum(map(size_of, matrices)) + vector_bytes, "the weights")

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

    def norm(name: str) -> Tensor:
        if config.norm_offset == 0:
            return vector(name)
        stored = torch.empty(names[name], dtype=torch.float32)  # the sum is what is rounded
        source.copy_into(name, stored)
        read(name)
        return empty(names[name], activation_dtype).copy_(stored + config.norm_offset)

    def matrix(*parts: str) -> Matrix:
        if not stays_in_blocks(*parts):
            return values(*parts)
        num_inputs = names[parts[0]][1]
        runs: list[BlockRows] = []
        for block_format, run in itertools.groupby(parts, source.block_format):
            of_run = list(run)
            num_rows = [names[part][0] for part in of_run]
            as_stored = (sum(num_rows), source.num_bytes(of_run[0]) // num_rows[0])
            # Pages of their own go back to the system, where the heap would keep them.
            pages_of_file = HugePages(HugePages.size_of(as_stored, torch.uint8), "weights as they are stored")
            blocks = pages_of_file.empty(as_stored, torch.uint8)
            for part, rows in zip(of_run, torch.split(blocks, num_rows), strict=True):
                source.copy_blocks_into(part, rows)
                read(part)
            assert block_format is not None
            groups = empty(groups_shape(*of_run), torch.uint8)
            ops.group_blocks(blocks, block_format, groups)
            runs.append(BlockRows(groups, block_format, sum(num_rows)))
        return BlockMatrix(tuple(runs), num_inputs, activation_bits)

    def layer(number: int) -> LayerWeights:
        stored, norms = layers[number], _stored_norms(config, number)

        def matrix_of(field: str) -> Matrix:
            return matrix(*weights_of(stored[field]))

        def bias_of(field: str) -> Tensor | None:
            return vector(*(f"{part}.bias" for part in stored[field].parts)) if stored[field].biased else None

        def norm_of(field: str) -> Tensor | None:
            return norm(norms[field][0]) if field in norms else None

        return LayerWeights(
            attention_norm=norm(norms["attention_norm"][0]),
            qkv=matrix_of("qkv"),
            qkv_bias=bias_of("qkv"),
            q_norm=norm_of("q_norm"),
            k_norm=norm_of("k_norm"),
            o=matrix_of("o"),
            o_bias=bias_of("o"),
            attention_output_norm=norm_of("attention_output_norm"),
            feed_forward_norm=norm(norms["feed_forward_norm"][0]),
            gate_up=matrix_of("gate_up"),
            gate_up_bias=bias_of("gate_up"),
            down=matrix_of("down"),
            down_bias=bias_of("down"),
            feed_forward_output_norm=norm_of("feed_forward_output_norm"),
            router=matrix_of("router") if "router" in stored else None,
        )

    embedding = matrix(EMBEDDING)
    return DecoderWeights(
        embedding=embedding,
        layers=tuple(layer(number) for number in range(config.num_layers)),
        final_norm=norm(FINAL_NORM),
        lm_head=_for_logits(embedding if config.tied_embeddings else matrix(LM_HEAD)),
        kv_scales=kv_scales.read_scales(config, source, device),
    )


def _for_logits(lm_head: Matrix) -> Matrix:
    """With activations of 16 bits where it had 8: few rows pass, and a fifth of the tokens that would differ do not."""
    if isinstance(lm_head, BlockMatrix) and lm_head.activation_bits < LOGITS_ACTIVATION_BITS:
        return replace(lm_head, activation_bits=LOGITS_ACTIVATION_BITS)
    return lm_head


def _listed(names: list[str], most: int = 5) -> str:
    shown = ", ".join(map(repr, names[:most]))
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"tensor{'s' if len(names) > 1 else ''} {shown}{more}"
