"""The tensor operations of the engine, on CPU and CUDA tensors.

Shapes: T tokens, B requests, Hq and Hkv query and KV heads, D head size, N blocks, S slots in a block (block size), M
columns of a block table. The caches of a layer are ``k_cache`` and ``v_cache``, both [N, Hkv, S, D]. A slot is
``block * S + offset``; slot -1 means "do not write".

Activations and caches are float32, bfloat16 or float16, each on its own; sums are kept in float32. The last dimension
of every tensor is contiguous, other strides are free: q, k and v may be views of one fused row.

Caches may be float8_e4m3fn, too, with a scale for each KV head: ``k_scale`` and ``v_scale``, both [Hkv] float32, which
these caches need and others must not have. A number x is stored as ``x * (1 / scale)``, rounded to nearest even, and as
448 with its sign where that is larger; NaN stays NaN. What is stored stands for itself times the scale. A float16 cache
on a CPU takes what is beyond 65,504, from wider activations, as that.

Errors: a wrong shape, dtype, device or stride raises ``ValueError`` with the name of the argument, what it must be and
what it is, before anything is written. A slot, position, block id or length out of range raises ``IndexError`` on the
CPU; on CUDA these values are the caller's responsibility.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

P = ParamSpec("P")
R = TypeVar("R")

torch.ops.load_library(Path(__file__).with_name("_ops.so"))  # type: ignore[no-untyped-call]


def load_cuda_kernels(kernels: Path, torch_cuda: Path) -> None:
    """Loads the library of the CUDA kernels, which takes the current stream from torch's own CUDA library.

    It is not linked to that one, so that it can be built with any torch, the one without CUDA too. torch has loaded it
    by then, for its own eyes alone; loaded once more like this, everybody sees its symbols.
    """
    ctypes.CDLL(str(torch_cuda), mode=ctypes.RTLD_GLOBAL)
    torch.ops.load_library(kernels)  # type: ignore[no-untyped-call]


_cuda_kernels = Path(__file__).with_name("_ops_cuda.so")
if _cuda_kernels.exists() and torch.cuda.is_available():
    load_cuda_kernels(_cuda_kernels, Path(torch.__file__).with_name("lib") / "libtorch_cuda.so")


def _op(declaration: Callable[P, R]) -> Callable[P, R]:
    """The op of the torch library that has the name of the declaration, with its types and its text.

    The body of the declaration is what the op gives for fake tensors: an output of the right shape. No Python function
    stands around the op itself, for a decode step calls some 300 of them.
    """
    name = declaration.__name__
    torch.library.register_fake(f"cudaprefill::{name}", declaration)
    op: Callable[P, R] = getattr(torch.ops.cudaprefill, name).default
    op.__doc__ = declaration.__doc__
    return op


@_op
def write_kv(
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_mapping: Tensor,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> None:
    """Writes token i's K and V into slot ``slot_mapping[i]`` of the caches.

    k, v: [T, Hkv, D]; k_cache, v_cache: [N, Hkv, S, D], written; slot_mapping: [T] int64. No two tokens may share a
    slot other than -1.
    """


@_op
def rope_write_kv(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos_sin: Tensor,
    position_ids: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_mapping: Tensor,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    norm_eps: float = 1e-6,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> None:
    """Norms and rotates q in place, and writes k, normed and rotated, and v into their slots of the caches.

    q: [T, Hq, D], written; k, v: [T, Hkv, D]; cos_sin: [P, R] float32, for each position R / 2 cosines, then R / 2
    sines; position_ids: [T] int64; slot_mapping: [T] int64; q_norm, k_norm: [D], weights of an RMSNorm of each head.

    RoPE in the "rotate halves" form: elements i and R / 2 + i of a head turn together, those from R on stay.
    """


@_op
def prefill_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    cu_seqlens_q: Tensor,
    context_lens: Tensor,
    out: Tensor,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> None:
    """Causal attention of several new tokens of each request over its paged KV, theirs included, into `out`.

    q, out: [T, Hq, D]; block_table: [B, M] int32; cu_seqlens_q: [B + 1] int32; context_lens: [B] int32, cached plus new
    tokens. Request b owns the rows ``cu_seqlens_q[b] .. cu_seqlens_q[b + 1]``; rows outside
    ``cu_seqlens_q[0] .. cu_seqlens_q[B]`` stay untouched. With n new tokens and c tokens in all, row i sees the keys
    ``0 .. c - n + i``, and of these only the last `window` if that is not 0. Scores are ``scale * q @ k``, capped as
    ``softcap * tanh(score / softcap)`` if that is not 0. Entries of the block table from ceil(c / S) on are never read.

    A CPU of level "avx512_bf16" multiplies the K and V of a bfloat16 cache as they are if D is even: it rounds q and
    the weights of the softmax to bfloat16 as well, as a GPU does, and sums in float32. Otherwise all of it is float32.
    """


@_op
def decode_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    context_lens: Tensor,
    out: Tensor,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> None:
    """Attention of the last token of each request over its paged KV, into `out`.

    q, out: [B, Hq, D]; block_table: [B, M] int32; context_lens: [B] int32, the token itself included; a length of 0
    gives a row of zeros. `scale`, `window` and `softcap` as in `prefill_attention`.
    """


@_op
def mixed_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    cu_seqlens_q: Tensor,
    context_lens: Tensor,
    out: Tensor,
    num_decodes: int,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> None:
    """The attention of a step with decodes and chunks, into `out`: `prefill_attention`, with its decodes told apart.

    The first `num_decodes` requests have one row each, ``cu_seqlens_q[i] == i``; all else is as in `prefill_attention`.
    On Hopper it is one launch, whose queue has both; elsewhere `decode_attention` and `prefill_attention` in turn.
    """


@_op
def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """``x / sqrt(mean(x ** 2) + eps) * weight``, row by row. x: [T, H]; weight: [H] -> [T, H]."""
    return x.new_empty(x.shape)


@_op
def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """``residual += x``, then the `rms_norm` of the residual. x, residual: [T, H]; weight: [H] -> [T, H]."""
    return x.new_empty(x.shape)


@_op
def silu_and_mul(x: Tensor) -> Tensor:
    """``silu(x[:, :I]) * x[:, I:]``. x: [T, 2 I] -> [T, I]."""
    return x.new_empty(x.shape[0], x.shape[1] // 2)


@_op
def gelu_tanh_and_mul(x: Tensor) -> Tensor:
    """``gelu(x[:, :I]) * x[:, I:]`` with the GELU in its tanh form, as Gemma has it. x: [T, 2 I] -> [T, I]."""
    return x.new_empty(x.shape[0], x.shape[1] // 2)


@_op
def expert_mlp(
    x: Tensor, router_logits: Tensor, gate_up: Tensor, down: Tensor, num_chosen: int, renormalise: bool
) -> Tensor:
    """Each token through the `num_chosen` experts of its largest router logits, whose outputs are summed by weight.

    x: [T, H]; router_logits: [T, E] of the dtype of x; gate_up: [E * 2 I, H] and down: [E * H, I], the matrices of the
    experts one below the other, gate above up -> [T, H]. An expert gives ``down @ (silu(gate @ x) * (up @ x))``; it
    weighs what the softmax over all E logits gives it, divided by the sum over the chosen ones if `renormalise`. Of
    equal logits the first is the larger, and NaN the smallest. On the CPU x is float32 and the weights are of any
    dtype; on CUDA both have one dtype, E is at most 256 and num_chosen at most 32.
    """
    return x.new_empty(x.shape)


@_op
def copy_blocks(k_cache: Tensor, v_cache: Tensor, block_pairs: Tensor) -> None:
    """Copies whole blocks within the caches of a layer, pair after pair.

    k_cache, v_cache: [N, Hkv, S, D], written; block_pairs: [C, 2] int64 of source and destination.
    """


LORA_TILE = 64  # outputs that lie together in `LoraPart.b`
MAX_LORA_RANK = 64
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)  # numbered as in csrc/ops/params.h


class LoraPart(NamedTuple):
    """What an adapter adds to a run of a linear layer's outputs: ``scale * (x @ a.T) @ B.T``, B of PEFT in tiles."""

    a: Tensor  # [r, K]
    b: Tensor  # [ceil(outputs / LORA_TILE), r, LORA_TILE]: `lora_tiles` of B
    scale: float
    first_output: int
    num_outputs: int


def lora_tiles(b: Tensor) -> Tensor:
    """B [outputs, r], as PEFT has it, for `LoraPart.b`: zeros fill the last tile up."""
    num_outputs, rank = b.shape
    padded = functional.pad(b.T, (0, -num_outputs % LORA_TILE))
    return padded.view(rank, -1, LORA_TILE).transpose(0, 1).contiguous()


def lora_parts(adapters: Sequence[Sequence[LoraPart]], device: torch.device, num_parts: int) -> tuple[Tensor, Tensor]:
    """`parts` and `scales` of `add_lora` for the parts of each adapter, at most `num_parts`.

    They hold addresses: keep the matrices.
    """
    table = torch.zeros((len(adapters), num_parts, 6), dtype=torch.int64)
    scales = torch.zeros((len(adapters), num_parts))
    for row, adapter in enumerate(adapters):
        for column, part in enumerate(adapter):
            where = (part.a.data_ptr(), part.b.data_ptr())
            which = (part.a.shape[0], part.first_output, part.num_outputs, _DTYPES.index(part.a.dtype))
            table[row, column] = torch.tensor((*where, *which))
            scales[row, column] = part.scale
    return table.to(device), scales.to(device)


@_op
def add_lora(out: Tensor, x: Tensor, row_ids: Tensor, row_starts: Tensor, parts: Tensor, scales: Tensor) -> None:
    """Adds to each row what its adapter makes of it; rows that no adapter has are neither read nor written.

    out: [T, L], written; x: [T, K] of the same dtype; row_ids: int32, no row twice; row_starts: [N + 1] int32: adapter
    i has the rows ``row_ids[row_starts[i] : row_starts[i + 1]]``; parts: [N, P, 6] int64 and scales: [N, P] float32,
    from `lora_parts`. Parts of one adapter must not overlap in their outputs. Sums are kept in float32. On a CPU the
    matrices are of any dtype; on a GPU they are of that of x, to which the numbers between the two products are rounded
    as well, and parts begin and end at multiples of 8 outputs.
    """


@_op
def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x @ weight.T + bias`` in float32, on the CPU alone.

    x: [T, K] float32; weight: [L, K]; bias: [L] float32 -> [T, L] float32. A 16-bit weight is read as it is and widened
    on the way: with one row, half the bytes take half the time.
    """
    return x.new_empty(x.shape[0], weight.shape[0])


class BlockFormat(NamedTuple):
    """How a GGUF file stores runs of a row's elements; csrc/cpu/gguf_blocks.h draws them."""

    name: str
    elements: int
    num_bytes: int
    group_bytes: int  # of as many elements of each of `GROUP_ROWS` rows

    def groups_shape(self, num_rows: int, num_columns: int) -> tuple[int, int]:
        """Of a matrix's groups: [groups, bytes of one]."""
        return -(-num_rows // GROUP_ROWS), num_columns // self.elements * self.group_bytes


# The CPU kernels want so many rows of blocks side by side; csrc/cpu/block_groups.h draws such a group.
GROUP_ROWS = 16

# Those that `linear_blocks` multiplies by, under GGUF's own numbers.
BLOCK_FORMATS = {
    2: BlockFormat("Q4_0", 32, 18, 16 * 18),
    3: BlockFormat("Q4_1", 32, 20, 16 * 20),
    8: BlockFormat("Q8_0", 32, 34, 16 * 34),
    12: BlockFormat("Q4_K", 256, 144, 16 * 148),
    14: BlockFormat("Q6_K", 256, 210, 16 * 210),
}


@_op
def group_blocks(blocks: Tensor, block_format: int, groups: Tensor) -> None:
    """Rearranges the blocks of a GGUF file's matrix into groups of rows, on the CPU alone.

    blocks: [L, bytes of K elements] uint8; block_format: a key of `BLOCK_FORMATS`; groups: uint8 of the format's
    ``groups_shape(L, K)``, written.
    """


@_op
def expert_mlp_blocks(
    x: Tensor,
    router_logits: Tensor,
    gate_up: Tensor,
    gate_up_format: int,
    down: Tensor,
    down_format: int,
    inner_size: int,
    num_chosen: int,
    renormalise: bool,
    activation_bits: int = 32,
) -> Tensor:
    """`expert_mlp` with the weights in groups of blocks, on the CPU alone.

    gate_up, down: what `group_blocks` made of the E * 2 I and E * H rows; the formats are keys of `BLOCK_FORMATS`;
    inner_size: I; activation_bits as in `linear_blocks`.
    """
    return x.new_empty(x.shape)


@_op
def linear_blocks(
    x: Tensor,
    groups: Tensor,
    block_format: int,
    num_outputs: int,
    bias: Tensor | None = None,
    activation_bits: int = 32,
) -> Tensor:
    """``x @ W.T + bias`` for a weight W [L, K] in groups of blocks, on the CPU alone.

    x: [T, K] float32; groups: what `group_blocks` made of L rows; num_outputs: L; bias: [L] float32 -> [T, L] float32.
    The values of W are those that `dequantise_rows` gives; they exist in registers and caches only.

    activation_bits: 32 computes in float32. With 8 and 16 the activations are rounded, each 32 of them with a scale of
    their own (largest / 127, or largest / 32767), and multiplied with the numbers of the blocks as integers. In any
    case a row of the result depends on that row of x alone, to the bit: not on the number of rows or threads.
    """
    return x.new_empty(x.shape[0], num_outputs)


@_op
def gated_linear(x: Tensor, gate_up: Tensor, activation: str, bias: Tensor | None = None) -> Tensor:
    """The first half of a gated MLP, ``activation(gate @ x) * (up @ x)``, in float32, on the CPU alone.

    x: [T, K] float32; gate_up: [2 I, K], gate above up; activation: "silu" or "gelu_tanh"; bias: [2 I] float32 ->
    [T, I] float32. To the bit what the op of that activation makes of `linear`, but with many rows what is between the
    two stays in a cache.
    """
    return x.new_empty(x.shape[0], gate_up.shape[0] // 2)


@_op
def gated_linear_blocks(
    x: Tensor,
    groups: Tensor,
    block_format: int,
    inner_size: int,
    activation: str,
    bias: Tensor | None = None,
    activation_bits: int = 32,
) -> Tensor:
    """`gated_linear` with the weights in groups of blocks, on the CPU alone.

    groups: what `group_blocks` made of 2 I rows; inner_size: I; block_format and activation_bits as in `linear_blocks`,
    of which this gives the bits.
    """
    return x.new_empty(x.shape[0], inner_size)


@_op
def dequantise_rows(groups: Tensor, block_format: int, num_rows: int, num_columns: int, row_ids: Tensor) -> Tensor:
    """Rows of a matrix [num_rows, num_columns] in groups of blocks, on the CPU alone.

    row_ids: [R] int64 -> [R, num_columns] float32.
    """
    return groups.new_empty((row_ids.shape[0], num_columns), dtype=torch.float32)


def cpu_isa() -> str:
    """The level of the CPU kernels that this process runs: plain, avx2, avx2_vnni, avx512, avx512_vnni or avx512_bf16.

    The highest that the machine offers, unless the environment variable ``CUDAPREFILL_CPU_ISA`` names a lower one;
    ``RuntimeError`` if it names one that is unknown or missing here.
    """
    level: str = torch.ops.cudaprefill.cpu_isa()
    return level


def num_threads() -> int:
    """The threads that the CPU kernels share their work with: by default as many as this process may run on."""
    count: int = torch.ops.cudaprefill.num_threads()
    return count


def set_num_threads(count: int) -> None:
    """For all kernels of this process from now on. Raises ValueError unless 1 <= count <= 1024."""
    torch.ops.cudaprefill.set_num_threads(count)


def activate_and_mul(x: Tensor, activation: str) -> Tensor:
    """`silu_and_mul` or `gelu_tanh_and_mul`, as `activation` has it: "silu" or "gelu_tanh"."""
    if activation == "silu":
        return silu_and_mul(x)
    if activation == "gelu_tanh":
        return gelu_tanh_and_mul(x)
    raise ValueError(f"activation must be silu or gelu_tanh, got {activation}")


def _leave_many_rows_to_torch(ours: Callable[[Tensor, Tensor, Tensor | None], Tensor]) -> Callable[..., Tensor]:
    def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        if x.shape[0] < 8 or weight.dtype != x.dtype:
            return ours(x, weight, bias)
        return functional.linear(x, weight, bias)

    linear.__doc__ = ours.__doc__
    return linear


def _in_two_ops(ours: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def gated_linear(x: Tensor, gate_up: Tensor, activation: str, bias: Tensor | None = None) -> Tensor:
        return activate_and_mul(linear(x, gate_up, bias), activation)

    gated_linear.__doc__ = ours.__doc__
    return gated_linear


# With AVX2 or AVX-512 `linear` outdoes torch's matmul at every size (figures in csrc/cpu/linear.cc). A machine that has
# neither runs kernels that are written for no CPU in particular, while torch's matmul is tuned for most: there the op
# reaches 46 GFLOP/s of one core however many the rows, torch 52 at 4 rows, 70 at 8 and 105 at 256.
if cpu_isa() == "plain":
    linear = _leave_many_rows_to_torch(linear)
    gated_linear = _in_two_ops(gated_linear)
