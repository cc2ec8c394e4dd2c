"""Any number of threads gives the same results: to the bit where no sum is cut, within rounding where keys are."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from cudaprefill import ops
from tests.ops.attention_reference import PagedBatch, paged_batch, threads
from tests.ops.block_matrices import groups_of, random_blocks

T, H, HQ, HKV, D, S = 301, 576, 9, 3, 64, 16  # enough tokens that three threads share each op

THREAD_COUNTS = [2, 3, 5]


def caches() -> tuple[Tensor, Tensor]:
    k_cache, v_cache = torch.zeros(2, T // S + 1, HKV, S, D)
    return k_cache, v_cache


def write_kv() -> tuple[Tensor, ...]:
    k, v = torch.randn(2, T, HKV, D)
    written = caches()
    ops.write_kv(k, v, *written, torch.randperm(T))
    return written


def rope_write_kv() -> tuple[Tensor, ...]:
    q, k, v = torch.randn(T, HQ + 2 * HKV, D).split([HQ, HKV, HKV], dim=1)
    written = caches()
    ops.rope_write_kv(q, k, v, torch.randn(T, D), torch.arange(T), *written, torch.randperm(T), torch.randn(D), None)
    return q, *written


def copy_blocks() -> tuple[Tensor, ...]:
    k_cache, v_cache = torch.randn(2, 128, HKV, S, D)
    ops.copy_blocks(k_cache, v_cache, torch.randperm(128).view(-1, 2))
    return k_cache, v_cache


def add_rms_norm() -> tuple[Tensor, ...]:
    residual = torch.randn(T, H)
    return ops.add_rms_norm(torch.randn(T, H), residual, torch.randn(H), 1e-5), residual


def blocks(num_rows: int = 700) -> Tensor:
    return groups_of(random_blocks(3, num_rows, H), 3)


# Each draws its arguments anew, the same ones after the same seed, and returns all that it writes.
CALLS: dict[str, Callable[[], tuple[Tensor, ...]]] = {
    "write_kv": write_kv,
    "rope_write_kv": rope_write_kv,
    "copy_blocks": copy_blocks,
    "rms_norm": lambda: (ops.rms_norm(torch.randn(T, H), torch.randn(H), 1e-5),),
    "add_rms_norm": add_rms_norm,
    "silu_and_mul": lambda: (ops.silu_and_mul(torch.randn(T, 2 * H)),),
    "gelu_tanh_and_mul": lambda: (ops.gelu_tanh_and_mul(torch.randn(T, 2 * H)),),
    "linear, many rows": lambda: (ops.linear(torch.randn(T, H), torch.randn(700, H)),),
    "linear, one row": lambda: (ops.linear(torch.randn(1, H), torch.randn(700, H)),),
    "linear_blocks, many rows": lambda: (ops.linear_blocks(torch.randn(T, H), blocks(), 3, 700),),
    "linear_blocks, one row": lambda: (ops.linear_blocks(torch.randn(1, H), blocks(), 3, 700),),
    "linear_blocks in 8 bits, many rows": lambda: (
        ops.linear_blocks(torch.randn(T, H), blocks(), 3, 700, activation_bits=8),
    ),
    "linear_blocks in 8 bits, one row": lambda: (
        ops.linear_blocks(torch.randn(1, H), blocks(), 3, 700, activation_bits=8),
    ),
    "gated_linear": lambda: (ops.gated_linear(torch.randn(T, H), torch.randn(700, H), "silu"),),
    "gated_linear_blocks": lambda: (ops.gated_linear_blocks(torch.randn(T, H), blocks(704), 3, 352, "silu"),),
    "dequantise_rows": lambda: (ops.dequantise_rows(blocks(), 3, 700, H, torch.randint(700, (T,))),),
}


def results(call: Callable[[], tuple[Tensor, ...]], num_threads: int) -> tuple[Tensor, ...]:
    torch.manual_seed(0)
    with threads(num_threads):
        return call()


@pytest.mark.parametrize("count", THREAD_COUNTS)
@pytest.mark.parametrize("name", CALLS)
def test_each_element_is_computed_as_by_one_thread(name: str, count: int) -> None:
    for alone, shared in zip(results(CALLS[name], 1), results(CALLS[name], count), strict=True):
        torch.testing.assert_close(shared, alone, rtol=0, atol=0, equal_nan=True)


def prefill(batch: PagedBatch) -> Tensor:
    out = torch.empty_like(batch.q)
    tables = (batch.block_table, batch.cu_seqlens_q, batch.context_lens)
    ops.prefill_attention(batch.q, batch.k_cache, batch.v_cache, *tables, out, batch.scale)
    return out


def decode(batch: PagedBatch) -> Tensor:
    out = torch.empty_like(batch.q)
    ops.decode_attention(batch.q, batch.k_cache, batch.v_cache, batch.block_table, batch.context_lens, out, batch.scale)
    return out


@pytest.mark.parametrize("count", THREAD_COUNTS)
@pytest.mark.parametrize("kv_dtype", [torch.float32, torch.bfloat16])
def test_attention_moves_by_rounding_where_threads_share_the_keys_of_a_row(kv_dtype: torch.dtype, count: int) -> None:
    prompt = paged_batch([600, 3], [900, 2000], HQ, HKV, kv_dtype=kv_dtype)
    decodes = paged_batch([1, 1], [3000, 700], HQ, HKV, kv_dtype=kv_dtype)
    with threads(1):
        alone = prefill(prompt), decode(decodes)
    with threads(count):
        shared = prefill(prompt), decode(decodes)
    factor_dtype = kv_dtype if ops.cpu_isa() == "avx512_bf16" else torch.float32
    rounding = torch.finfo(factor_dtype).eps * (0.5 if factor_dtype == torch.bfloat16 else 16)
    for own, other in zip(alone, shared, strict=True):
        assert (other - own).norm() <= rounding * own.norm()
