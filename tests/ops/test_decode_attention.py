"""decode_attention against float64 at every instruction set level; slots that no request owns are NaN throughout."""

from __future__ import annotations

import math

import pytest
import torch

from cudaprefill import ops
from tests.ops.attention_calls import decode, prefill
from tests.ops.attention_reference import (
    FLOAT8,
    PagedBatch,
    assert_as_exact_as_torch,
    assert_rows_as_exact_as_torch,
    paged_batch,
    threads,
)
from tests.ops.isa_levels import lower_float_levels, passes_at_isa_level

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
KV_DTYPES = [*DTYPES, FLOAT8]


def decode_batch(context_lens: list[int], *shape: int, **options: object) -> PagedBatch:
    return paged_batch([1] * len(context_lens), context_lens, *shape, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("level", lower_float_levels())
def test_lower_float_levels_pass_this_file(level: str) -> None:
    passes_at_isa_level(level, __file__)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_the_query_sees_its_whole_context(dtype: torch.dtype, kv_dtype: torch.dtype) -> None:
    batch = decode_batch([1, 2, 15, 16, 17, 300, 1000], dtype=dtype, kv_dtype=kv_dtype)
    assert_as_exact_as_torch(decode(batch), batch)


@pytest.mark.parametrize("heads", [(24, 4), (28, 4), (40, 8), (6, 2), (71, 1)])
@pytest.mark.parametrize("head_size", [64, 80, 96, 128, 256])
def test_group_and_head_sizes(heads: tuple[int, int], head_size: int) -> None:
    batch = decode_batch([1, 16, 17, 300], *heads, head_size)
    assert_as_exact_as_torch(decode(batch), batch)


@pytest.mark.parametrize("head_size", [1, 8, 36, 50])
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_head_sizes_that_fill_no_vector(head_size: int, kv_dtype: torch.dtype) -> None:
    batch = decode_batch([1, 70], head_size=head_size, kv_dtype=kv_dtype)
    assert_as_exact_as_torch(decode(batch), batch)


@pytest.mark.parametrize("block_size", [1, 5, 16, 32, 64])
def test_block_sizes(block_size: int) -> None:
    batch = decode_batch([1, 64, 65, 333], block_size=block_size)
    assert_as_exact_as_torch(decode(batch), batch)


@pytest.mark.parametrize("count", [1, 2, 8])
@pytest.mark.parametrize(
    "context_lens", [[1], [16], [8192], [12_289], [65_536], [131_072], [33, 4097], [4097] * 3, [2500] + [5] * 20]
)
def test_keys_split_over_any_number_of_threads(context_lens: list[int], count: int) -> None:
    batch = decode_batch(context_lens, 3, 1)
    with threads(count):
        assert_as_exact_as_torch(decode(batch), batch)


@pytest.mark.parametrize("length", [1, 17, 4097, 20_000])
def test_a_key_of_overwhelming_score_is_found_wherever_it_lies(length: int) -> None:
    for needle in {0, length // 2, length - 1}:
        batch = decode_batch([length], 2, 1)
        block, slot = batch.block_table[0, needle // 16], needle % 16
        batch.k_cache[block, 0, slot] = 50 * batch.q[0, 0]
        with threads(8):
            torch.testing.assert_close(decode(batch)[0, 0], batch.values[0][needle, 0], rtol=0, atol=0)


def test_scores_far_apart_and_far_from_zero() -> None:
    batch = decode_batch([300, 3000], spread=200.0)
    out = decode(batch)
    assert out.isfinite().all()
    assert_as_exact_as_torch(out, batch)


def test_an_empty_context_gives_zeros_and_disturbs_nobody() -> None:
    batch = decode_batch([0, 3, 0, 5])
    out = decode(batch)
    assert (out[[0, 2]] == 0).all()
    assert_as_exact_as_torch(out, batch)
    assert (decode(decode_batch([0, 0])) == 0).all()


def test_a_batch_without_requests_does_nothing() -> None:
    assert decode(decode_batch([])).shape[0] == 0


@pytest.mark.parametrize("window", [0, 32])
def test_decoding_gives_what_prefill_of_one_row_gives(window: int) -> None:
    batch = decode_batch([1, 31, 72, 1000])
    assert_as_exact_as_torch(prefill(batch, window), batch, window)
    assert_as_exact_as_torch(decode(batch, window), batch, window)


def test_tokens_decoded_after_a_prompt_with_a_window() -> None:
    window, prompt, tokens = 32, 64, 72
    batch = paged_batch([tokens], [tokens])
    out = torch.full_like(batch.q, math.nan)
    ops.prefill_attention(
        batch.q,
        batch.k_cache,
        batch.v_cache,
        batch.block_table,
        torch.tensor([0, prompt], dtype=torch.int32),
        torch.tensor([prompt], dtype=torch.int32),
        out,
        batch.scale,
        window,
    )
    for position in range(prompt, tokens):
        row = slice(position, position + 1)
        length = torch.tensor([position + 1], dtype=torch.int32)
        ops.decode_attention(
            batch.q[row], batch.k_cache, batch.v_cache, batch.block_table, length, out[row], batch.scale, window
        )
    assert_as_exact_as_torch(out, batch, window)


@pytest.mark.parametrize("window", [1, 7, 32, 130, 1000])
def test_window(window: int) -> None:
    batch = decode_batch([1, 40, 131, 600, 5000])
    assert_as_exact_as_torch(decode(batch, window), batch, window)


def test_keys_before_the_window_contribute_nothing() -> None:
    batch = decode_batch([400])
    for position in range(400 - 32):
        block = batch.block_table[0, position // 16]
        batch.k_cache[block, :, position % 16] = math.nan
        batch.v_cache[block, :, position % 16] = math.nan
    assert_as_exact_as_torch(decode(batch, window=32), batch, window=32)


@pytest.mark.parametrize("softcap", [0.5, 30.0])
@pytest.mark.parametrize("dtype", DTYPES)
def test_soft_cap(softcap: float, dtype: torch.dtype) -> None:
    batch = decode_batch([1, 20, 200], dtype=dtype, kv_dtype=dtype, spread=4.0)
    assert_as_exact_as_torch(decode(batch, softcap=softcap), batch, softcap=softcap)


def test_q_and_out_may_be_views_of_wider_rows() -> None:
    batch = decode_batch([30, 200])
    expected = decode(batch)
    requests, heads, head_size = batch.q.shape
    fused = torch.full((requests, 2 * heads, head_size + 8), math.nan)
    q = fused[:, heads:, 4 : head_size + 4]
    q.copy_(batch.q)
    wide = torch.full((requests, heads + 3, head_size), 7.0)
    ops.decode_attention(
        q,
        batch.k_cache,
        batch.v_cache,
        batch.block_table,
        batch.context_lens,
        wide[:, 1 : heads + 1],
        batch.scale,
    )
    assert torch.equal(wide[:, 1 : heads + 1], expected)
    assert (wide[:, 0] == 7).all()
    assert (wide[:, heads + 1 :] == 7).all()


def test_nan_in_one_request_stays_in_that_request() -> None:
    batch = decode_batch([40, 8, 200])
    expected = decode(batch)
    batch.q[1] = math.nan
    out = decode(batch)
    assert out[1].isnan().all()
    assert torch.equal(out[[0, 2]], expected[[0, 2]])


def test_2048_requests_of_32_heads() -> None:
    context_lens = torch.randint(1, 60, (2048,), generator=torch.Generator().manual_seed(0)).tolist()
    batch = decode_batch(context_lens, 32, 8)
    out = decode(batch)
    assert out.isfinite().all()
    for request in range(0, 2048, 89):
        position = torch.tensor([context_lens[request] - 1])
        row = slice(request, request + 1)
        keys, values = batch.keys[request], batch.values[request]
        assert_rows_as_exact_as_torch(out[row], batch.q[row], keys, values, position, batch.scale)


def test_blocks_far_beyond_32_bit_offsets() -> None:
    # 8 KV heads of 128 at bfloat16: 4.6 GB a cache, of which only the blocks in use are ever backed by memory.
    near = decode_batch([33, 60], 8, 8, 128, kv_dtype=torch.bfloat16)
    far_blocks = torch.tensor([65_535, 65_536, 131_071, 131_072, 139_999, 70_000, 139_998, 1, 0, 2])
    assert near.k_cache.shape[0] == len(far_blocks)
    k_cache, v_cache = (torch.empty(140_000, 8, 16, 128, dtype=torch.bfloat16) for _ in range(2))
    k_cache[far_blocks], v_cache[far_blocks] = near.k_cache, near.v_cache
    block_table = near.block_table.clone()
    in_use = block_table < len(far_blocks)
    block_table[in_use] = far_blocks[block_table[in_use].long()].int()
    out = torch.empty_like(near.q)
    ops.decode_attention(near.q, k_cache, v_cache, block_table, near.context_lens, out, near.scale)
    assert torch.equal(out, decode(near))

    def prefill(k_cache: torch.Tensor, v_cache: torch.Tensor, block_table: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(near.q)
        starts, lens = near.cu_seqlens_q, near.context_lens
        ops.prefill_attention(near.q, k_cache, v_cache, block_table, starts, lens, out, near.scale)
        return out

    assert torch.equal(prefill(k_cache, v_cache, block_table), prefill(near.k_cache, near.v_cache, near.block_table))


@pytest.mark.parametrize("block", [-1, 2**31 - 1, 31])
def test_a_block_outside_the_cache_raises_with_both_numbers(block: int) -> None:
    batch = decode_batch([5, 430])
    assert batch.k_cache.shape[0] == 31
    batch.block_table[1, 17] = block
    with pytest.raises(IndexError, match=rf"block_table row 1 holds block {block}.* 31 blocks"):
        decode(batch)


def test_a_context_longer_than_the_block_table_raises_with_both_numbers() -> None:
    batch = decode_batch([5, 30])
    capacity = batch.block_table.shape[1] * 16
    batch.context_lens[1] = capacity + 1
    with pytest.raises(IndexError, match=rf"context_lens\[1\] is {capacity + 1}.* {capacity} slots"):
        decode(batch)
    batch.context_lens[1] = -1
    with pytest.raises(IndexError, match=rf"context_lens\[1\] is -1.* {capacity} slots"):
        decode(batch)
