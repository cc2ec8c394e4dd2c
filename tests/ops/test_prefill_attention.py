"""prefill_attention against float64 at every instruction set level; slots that no request owns are NaN throughout."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from cudaprefill import ops
from tests.ops.attention_calls import prefill
from tests.ops.attention_reference import (
    FLOAT8,
    PagedBatch,
    assert_rows_as_exact_as_torch,
    paged_batch,
    threads,
)
from tests.ops.attention_reference import assert_as_exact_as_torch as assert_as_exact_with_factors
from tests.ops.isa_levels import lower_attention_levels, passes_at_isa_level

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
KV_DTYPES = [*DTYPES, FLOAT8]


def assert_as_exact_as_torch(out: Tensor, batch: PagedBatch, window: int = 0, softcap: float = 0.0) -> None:
    multiplies_bfloat16 = (
        ops.cpu_isa() == "avx512_bf16" and batch.k_cache.dtype == torch.bfloat16 and batch.q.shape[-1] % 2 == 0
    )
    factor_dtype = torch.bfloat16 if multiplies_bfloat16 else None
    assert_as_exact_with_factors(out, batch, window, softcap, factor_dtype)


@pytest.mark.parametrize("level", lower_attention_levels())
def test_lower_levels_pass_this_file(level: str) -> None:
    passes_at_isa_level(level, __file__)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_row_i_sees_the_keys_up_to_its_own_position(dtype: torch.dtype, kv_dtype: torch.dtype) -> None:
    batch = paged_batch([3, 16, 33, 100], [20, 17, 33, 400], dtype=dtype, kv_dtype=kv_dtype)
    assert_as_exact_as_torch(prefill(batch), batch)


@pytest.mark.parametrize("heads", [(24, 4), (28, 4), (40, 8), (6, 2), (71, 1)])
@pytest.mark.parametrize("head_size", [64, 80, 96, 128, 256])
def test_group_and_head_sizes(heads: tuple[int, int], head_size: int) -> None:
    batch = paged_batch([1, 16, 17, 20], [1, 16, 17, 300], *heads, head_size)
    assert_as_exact_as_torch(prefill(batch), batch)


@pytest.mark.parametrize("head_size", [1, 8, 36, 50])
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_head_sizes_that_fill_no_vector(head_size: int, kv_dtype: torch.dtype) -> None:
    batch = paged_batch([5, 40], [5, 70], head_size=head_size, kv_dtype=kv_dtype)
    assert_as_exact_as_torch(prefill(batch), batch)


@pytest.mark.parametrize("block_size", [1, 5, 16, 32, 64])
@pytest.mark.parametrize("kv_dtype", [torch.float32, torch.bfloat16, FLOAT8])
def test_block_sizes(block_size: int, kv_dtype: torch.dtype) -> None:
    batch = paged_batch([7, 64, 200], [7, 150, 333], block_size=block_size, kv_dtype=kv_dtype)
    assert_as_exact_as_torch(prefill(batch), batch)


def test_requests_without_new_tokens_yield_nothing() -> None:
    batch = paged_batch([5, 0, 4], [5, 9, 4])
    assert batch.cu_seqlens_q.tolist() == [0, 5, 5, 9]
    out = prefill(batch)
    assert_as_exact_as_torch(out, batch)
    for request in (0, 2):
        rows = batch.query_rows(request)
        alone = PagedBatch(
            batch.q[rows],
            batch.k_cache,
            batch.v_cache,
            batch.block_table[request : request + 1],
            torch.tensor([0, rows.stop - rows.start], dtype=torch.int32),
            batch.context_lens[request : request + 1],
            (batch.keys[request],),
            (batch.values[request],),
        )
        torch.testing.assert_close(prefill(alone), out[rows], rtol=0, atol=0)

    nothing = paged_batch([0, 1, 0, 1], [0, 3, 0, 5])
    assert_as_exact_as_torch(prefill(nothing), nothing)
    assert prefill(paged_batch([0, 0], [0, 20])).shape[0] == 0


def test_a_batch_without_requests_does_nothing() -> None:
    assert prefill(paged_batch([], [])).shape[0] == 0


def test_rows_outside_the_range_of_cu_seqlens_are_untouched() -> None:
    batch = paged_batch([2, 5, 40, 3], [2, 5, 90, 3])
    out = torch.full_like(batch.q, 7.0)
    ops.prefill_attention(
        batch.q,
        batch.k_cache,
        batch.v_cache,
        batch.block_table[1:3],
        batch.cu_seqlens_q[1:4],
        batch.context_lens[1:3],
        out,
        batch.scale,
    )
    whole = prefill(batch)
    assert torch.equal(out[2:47], whole[2:47])
    assert (out[:2] == 7).all()
    assert (out[47:] == 7).all()


def test_q_and_out_may_be_views_of_wider_rows() -> None:
    batch = paged_batch([30, 20], [100, 20])
    expected = prefill(batch)
    tokens, heads, head_size = batch.q.shape
    fused = torch.full((tokens, 2 * heads, head_size + 8), math.nan)
    q = fused[:, heads:, 4 : head_size + 4]
    q.copy_(batch.q)
    wide = torch.full((tokens, heads + 3, head_size), 7.0)
    ops.prefill_attention(
        q,
        batch.k_cache,
        batch.v_cache,
        batch.block_table,
        batch.cu_seqlens_q,
        batch.context_lens,
        wide[:, 1 : heads + 1],
        batch.scale,
    )
    assert torch.equal(wide[:, 1 : heads + 1], expected)
    assert (wide[:, 0] == 7).all()
    assert (wide[:, heads + 1 :] == 7).all()


def test_caches_may_be_views_of_one_tensor() -> None:
    batch = paged_batch([30, 20], [100, 20])
    both = torch.stack([batch.k_cache, batch.v_cache], dim=2)  # [N, Hkv, 2, S, D]
    out = torch.empty_like(batch.q)
    ops.prefill_attention(
        batch.q,
        both[:, :, 0],
        both[:, :, 1],
        batch.block_table,
        batch.cu_seqlens_q,
        batch.context_lens,
        out,
        batch.scale,
    )
    assert torch.equal(out, prefill(batch))


@pytest.mark.parametrize("softcap", [0.5, 30.0])
@pytest.mark.parametrize("dtype", DTYPES)
def test_soft_cap(softcap: float, dtype: torch.dtype) -> None:
    batch = paged_batch([20, 50], [20, 200], dtype=dtype, kv_dtype=dtype, spread=4.0)
    assert_as_exact_as_torch(prefill(batch, softcap=softcap), batch, softcap=softcap)


@pytest.mark.parametrize("window", [1, 7, 32, 130, 1000])
@pytest.mark.parametrize("kv_dtype", [torch.float32, torch.bfloat16, FLOAT8])
def test_window(window: int, kv_dtype: torch.dtype) -> None:
    batch = paged_batch([1, 72, 200, 90], [40, 72, 600, 500], kv_dtype=kv_dtype)
    assert_as_exact_as_torch(prefill(batch, window), batch, window)


@pytest.mark.parametrize("kv_dtype", [torch.float32, torch.bfloat16])
def test_keys_before_the_window_contribute_nothing(kv_dtype: torch.dtype) -> None:
    batch = paged_batch([40], [400], kv_dtype=kv_dtype)
    poisoned = 400 - 40 - 32 + 1  # what the first row's window of 32 leaves out
    for position in range(poisoned):
        block = batch.block_table[0, position // 16]
        batch.k_cache[block, :, position % 16] = math.nan
        batch.v_cache[block, :, position % 16] = math.nan
    assert_as_exact_as_torch(prefill(batch, window=32), batch, window=32)


@pytest.mark.parametrize("window", [0, 32])
@pytest.mark.parametrize("chunk", [1, 24, 64])
@pytest.mark.parametrize("kv_dtype", [torch.float32, torch.bfloat16])
def test_chunks_give_what_one_shot_gives(chunk: int, window: int, kv_dtype: torch.dtype) -> None:
    tokens = 72
    batch = paged_batch([tokens], [tokens], kv_dtype=kv_dtype)
    out = torch.full_like(batch.q, math.nan)
    for first in range(0, tokens, chunk):
        last = min(first + chunk, tokens)
        ops.prefill_attention(
            batch.q,
            batch.k_cache,
            batch.v_cache,
            batch.block_table,
            torch.tensor([first, last], dtype=torch.int32),
            torch.tensor([last], dtype=torch.int32),
            out,
            batch.scale,
            window,
        )
    assert_as_exact_as_torch(out, batch, window)
    assert_as_exact_as_torch(prefill(batch, window), batch, window)


@pytest.mark.parametrize("window", [0, 700])
@pytest.mark.parametrize("kv_dtype", [torch.float32, torch.bfloat16])
def test_short_chunk_of_a_long_context_split_over_threads(kv_dtype: torch.dtype, window: int) -> None:
    batch = paged_batch([64, 2], [5000, 3], 2, 1, kv_dtype=kv_dtype, spread=3.0)
    for count in (1, 2, 8):
        with threads(count):
            assert_as_exact_as_torch(prefill(batch, window), batch, window)


def test_a_key_of_overwhelming_score_is_found_wherever_it_lies() -> None:
    length = 700
    for needle in (0, 127, 128, 350, length - 1):
        batch = paged_batch([1], [length], 2, 1)
        block, slot = batch.block_table[0, needle // 16], needle % 16
        batch.k_cache[block, 0, slot] = 50 * batch.q[0, 0]
        torch.testing.assert_close(prefill(batch)[0, 0], batch.values[0][needle, 0], rtol=0, atol=0)


def test_scores_far_apart_and_far_from_zero() -> None:
    batch = paged_batch([50], [300], spread=200.0)
    out = prefill(batch)
    assert out.isfinite().all()
    assert_as_exact_as_torch(out, batch)


def test_nan_in_one_row_stays_in_that_row() -> None:
    batch = paged_batch([40, 8], [200, 30])
    expected = prefill(batch)
    batch.q[5] = math.nan
    out = prefill(batch)
    assert out[5].isnan().all()
    others = torch.arange(batch.q.shape[0]) != 5
    assert torch.equal(out[others], expected[others])


@pytest.mark.parametrize("block", [-1, 2**31 - 1, 31])
def test_a_block_outside_the_cache_raises_with_both_numbers(block: int) -> None:
    batch = paged_batch([5, 20], [5, 430])
    assert batch.k_cache.shape[0] == 31
    batch.block_table[1, 17] = block
    with pytest.raises(IndexError, match=rf"block_table row 1 holds block {block}.* 31 blocks"):
        prefill(batch)


def test_lengths_that_contradict_each_other_raise_with_both_numbers() -> None:
    batch = paged_batch([5, 20], [5, 30])
    capacity = batch.block_table.shape[1] * 16

    def raises(message: str, cu_seqlens_q: list[int], context_lens: list[int]) -> None:
        with pytest.raises(IndexError, match=message):
            ops.prefill_attention(
                batch.q,
                batch.k_cache,
                batch.v_cache,
                batch.block_table,
                torch.tensor(cu_seqlens_q, dtype=torch.int32),
                torch.tensor(context_lens, dtype=torch.int32),
                torch.empty_like(batch.q),
                batch.scale,
            )

    raises(r"context_lens\[1\] is 19.* 20 new tokens", [0, 5, 25], [5, 19])
    raises(r"context_lens\[0\] is -1.* 5 new tokens", [0, 5, 25], [-1, 30])
    raises(rf"context_lens\[1\] is {capacity + 1}.* {capacity} slots", [0, 5, 25], [5, capacity + 1])
    raises(r"cu_seqlens_q\[1\].* 5, 4, .*25 tokens", [0, 5, 4], [5, 30])
    raises(r"cu_seqlens_q\[1\].* 5, 26, .*25 tokens", [0, 5, 26], [5, 30])
    raises(r"cu_seqlens_q\[0\].* -1, 5, .*25 tokens", [-1, 5, 25], [6, 30])


def test_a_prompt_of_65537_tokens() -> None:
    tokens = 65_537
    batch = paged_batch([tokens], [tokens], 1, 1, 16)
    out = prefill(batch)
    sampled = torch.tensor([0, 1, 4095, 32_768, 65_535, 65_536])
    assert_rows_as_exact_as_torch(out[sampled], batch.q[sampled], batch.keys[0], batch.values[0], sampled, batch.scale)
    assert out.isfinite().all()
