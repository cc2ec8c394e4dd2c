"""Paged batches with poisoned unused memory, attention over them in float64, and the number of threads.

The reference reads the keys and values of each request as they were before paging, so a wrong block, slot or stride
of a kernel cannot hide in it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from cudaprefill import ops

FLOAT8 = torch.float8_e4m3fn
POISONED_BLOCK = 2**31 - 1  # fills the entries of the block table that no kernel may read


@dataclass(frozen=True)
class PagedBatch:
    """A batch of requests whose keys and values lie in shuffled blocks; every slot that no request owns is NaN."""

    q: Tensor  # [T, Hq, D]
    k_cache: Tensor  # [N, Hkv, S, D]
    v_cache: Tensor  # [N, Hkv, S, D]
    block_table: Tensor  # [B, M] int32
    cu_seqlens_q: Tensor  # [B + 1] int32
    context_lens: Tensor  # [B] int32
    keys: tuple[Tensor, ...]  # of each request, before paging: [context_len, Hkv, D]; float32 of a float8 cache
    values: tuple[Tensor, ...]
    k_scale: Tensor | None = None  # [Hkv], of a float8 cache
    v_scale: Tensor | None = None

    @property
    def scale(self) -> float:
        return 1.0 / math.sqrt(self.q.shape[-1])

    def query_rows(self, request: int) -> slice:
        return slice(int(self.cu_seqlens_q[request]), int(self.cu_seqlens_q[request + 1]))


def paged_batch(
    query_lens: Sequence[int],
    context_lens: Sequence[int],
    num_q_heads: int = 6,
    num_kv_heads: int = 2,
    head_size: int = 64,
    block_size: int = 16,
    dtype: torch.dtype = torch.float32,
    kv_dtype: torch.dtype = torch.float32,
    spread: float = 1.0,
    seed: int = 0,
) -> PagedBatch:
    """Random requests; `spread` is the standard deviation of the queries, so a large one makes the softmax sharp.

    In a float8 cache every head has scales of its own, between 1/200 and 1/50, so some numbers are subnormal.
    """
    random = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random)

    q = (normal(sum(query_lens), num_q_heads, head_size) * spread).to(dtype)
    keys = tuple(normal(length, num_kv_heads, head_size) for length in context_lens)
    values = tuple(normal(length, num_kv_heads, head_size) for length in context_lens)
    k_scale = v_scale = None
    if kv_dtype == FLOAT8:
        k_scale, v_scale = 0.005 * 4 ** torch.rand(2, num_kv_heads, generator=random)
        stored_keys, stored_values = (
            tuple(in_float8(row, scale) for row in rows) for rows, scale in ((keys, k_scale), (values, v_scale))
        )
        keys = tuple(from_float8(stored, k_scale) for stored in stored_keys)
        values = tuple(from_float8(stored, v_scale) for stored in stored_values)
    else:
        keys, values = (tuple(row.to(kv_dtype) for row in rows) for rows in (keys, values))
        stored_keys, stored_values = keys, values

    lengths = torch.tensor(context_lens, dtype=torch.int64)
    blocks_needed = (lengths + block_size - 1) // block_size
    num_blocks = int(blocks_needed.sum()) + 3
    max_blocks = int(blocks_needed.max()) + 2 if context_lens else 2
    in_use = torch.arange(max_blocks)[None, :] < blocks_needed[:, None]
    block_table = torch.full((len(context_lens), max_blocks), POISONED_BLOCK, dtype=torch.int32)
    block_table[in_use] = torch.randperm(num_blocks, generator=random)[: int(blocks_needed.sum())].int()

    k_cache, v_cache = (
        torch.full((num_blocks, num_kv_heads, block_size, head_size), math.nan, dtype=kv_dtype) for _ in range(2)
    )
    if context_lens:
        request = torch.arange(len(context_lens)).repeat_interleave(lengths)
        position = torch.cat([torch.arange(length) for length in context_lens])
        block, slot = block_table[request, position // block_size].long(), position % block_size
        k_cache[block, :, slot] = torch.cat(stored_keys)
        v_cache[block, :, slot] = torch.cat(stored_values)

    cu_seqlens_q = torch.zeros(len(query_lens) + 1, dtype=torch.int32)
    cu_seqlens_q[1:] = torch.tensor(query_lens, dtype=torch.int32).cumsum(0)
    return PagedBatch(
        q,
        k_cache,
        v_cache,
        block_table,
        cu_seqlens_q,
        torch.tensor(context_lens, dtype=torch.int32),
        keys,
        values,
        k_scale,
        v_scale,
    )


def in_float8(rows: Tensor, scale: Tensor) -> Tensor:
    """What a float8 cache stores of rows [T, Hkv, D]; scale: [Hkv]."""
    return (rows.float() * (1 / scale)[:, None]).clamp(-448, 448).to(FLOAT8)


def from_float8(stored: Tensor, scale: Tensor) -> Tensor:
    """What stored rows stand for."""
    return stored.float() * scale[:, None]


def attention(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    positions: Tensor,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    dtype: torch.dtype = torch.float64,
    factor_dtype: torch.dtype | None = None,
) -> Tensor:
    """Plain attention of one request, every step of it computed and rounded in `dtype`.

    factor_dtype: what the queries and the weights are rounded to before they are multiplied with keys and values.

    q [R, Hq, D] of the rows at `positions` [R] sees the keys [L, Hkv, D] up to its own position, and with a window only
    the last `window` of these. Returns [R, Hq, D].
    """
    group = q.shape[1] // keys.shape[1]
    factor_dtype = factor_dtype or dtype
    queries = q.to(factor_dtype).to(dtype).transpose(0, 1)
    keys = keys.to(dtype).transpose(0, 1).repeat_interleave(group, dim=0)
    values = values.to(dtype).transpose(0, 1).repeat_interleave(group, dim=0)
    scores = queries @ keys.transpose(1, 2) * scale
    if softcap:
        scores = torch.tanh(scores / softcap) * softcap
    distance = positions[:, None] - torch.arange(keys.shape[1])[None, :]
    visible = distance >= 0
    if window:
        visible &= distance < window
    weights = torch.softmax(scores.masked_fill(~visible, -math.inf), dim=-1)
    return (weights.to(factor_dtype).to(dtype) @ values).transpose(0, 1)


def assert_rows_as_exact_as_torch(
    actual: Tensor,
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    positions: Tensor,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    factor_dtype: torch.dtype | None = None,
    dtype: torch.dtype | None = None,
) -> None:
    """The error against float64 is at most twice that of torch doing the same in the type that q and keys promote to.

    dtype: another type for torch.
    factor_dtype: what kernel and torch may round the queries and the weights to before they multiply.

    Beside that, one rounding to float32 of each score and each output is allowed, and one to factor_dtype of each
    output: a score of s that is rounded moves its weight by s * eps. Few rows would otherwise leave it to luck which of
    two equally exact results has the larger error. Errors are taken over all elements (root of the sum of squares), a
    sum that one wrong element exceeds by far.
    """
    exact = attention(q, keys, values, positions, scale, window, softcap)
    dtype = dtype or torch.promote_types(q.dtype, keys.dtype)
    in_torch = attention(q, keys, values, positions, scale, window, softcap, dtype, factor_dtype)
    actual_error = (actual.double() - exact).norm().item()
    torch_error = (in_torch.to(actual.dtype).double() - exact).norm().item()
    largest_score = scale * q.double().norm(dim=-1).max().item() * keys.double().norm(dim=-1).max().item()
    rounding = torch.finfo(torch.float32).eps * (1 + largest_score) * exact.norm().item()
    if factor_dtype is not None:
        rounding += torch.finfo(factor_dtype).eps / 2 * exact.norm().item()
    assert actual_error <= 2 * torch_error + rounding, f"error {actual_error:.3g}, in torch {torch_error:.3g}"


def assert_as_exact_as_torch(
    actual: Tensor,
    batch: PagedBatch,
    window: int = 0,
    softcap: float = 0.0,
    factor_dtype: torch.dtype | None = None,
) -> None:
    """As above for the rows of every request of a batch."""
    for request, length in enumerate(batch.context_lens.tolist()):
        rows = batch.query_rows(request)
        if rows.start < rows.stop and length > 0:
            positions = torch.arange(length - (rows.stop - rows.start), length)
            keys, values = batch.keys[request], batch.values[request]
            assert_rows_as_exact_as_torch(
                actual[rows],
                batch.q[rows],
                keys,
                values,
                positions,
                batch.scale,
                window,
                softcap,
                factor_dtype,
                batch.q.dtype if batch.k_scale is not None else None,
            )


@contextmanager
def threads(count: int) -> Iterator[None]:
    """The number of threads that kernels use, which is what decides into how many splits they cut their work."""
    before = ops.num_threads()
    ops.set_num_threads(count)
    try:
        yield
    finally:
        ops.set_num_threads(before)
