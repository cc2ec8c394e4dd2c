"""The attention kernels against float64, as tests/ops has it, at the sizes and shapes where they differ inside.

The grid is the same for whatever the caches hold. Over float8 it runs on an emulated Hopper device, too, whose kernels
these are as much as those of 16 bits in test_hopper*.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack
from typing import NamedTuple

import pytest
import torch

from cudaprefill import ops
from tests.cuda.backends import as_it_usually_is, backend_of_ops, emulation
from tests.ops.attention_calls import attend, decode, prefill
from tests.ops.attention_reference import FLOAT8, PagedBatch, assert_as_exact_as_torch, paged_batch

HALF_TYPES = (torch.bfloat16, torch.float16)


def half_batch(query_lens, context_lens, dtype=torch.bfloat16, kv_dtype=None, **options) -> PagedBatch:
    return paged_batch(query_lens, context_lens, dtype=dtype, kv_dtype=kv_dtype or dtype, **options)


class Caches(NamedTuple):
    """Of a type, None being that of the activations, on a device; `capability` is of an emulated one."""

    kv_dtype: torch.dtype | None
    backend: str = "emulated"
    capability: int = 80

    def batch(self, query_lens, context_lens, dtype=torch.bfloat16, **options) -> PagedBatch:
        return half_batch(query_lens, context_lens, dtype, self.kv_dtype, **options)


CACHES = {"16 bits": Caches(None), "float8": Caches(FLOAT8), "float8 on a Hopper": Caches(FLOAT8, capability=90)}
CONVERTS = {"float8 by an instruction": Caches(FLOAT8, capability=89)}  # else the kernels are those of 80
ON_CUDA = {"16 bits on cuda": Caches(None, "cuda"), "float8 on cuda": Caches(FLOAT8, "cuda")}


def of_caches(cases: dict[str, Caches]):
    marks = {"cuda": pytest.mark.gpu, "emulated": ()}
    return [pytest.param(caches, id=name, marks=marks[caches.backend]) for name, caches in cases.items()]


@pytest.fixture(params=of_caches(CACHES | ON_CUDA))
def caches(request: pytest.FixtureRequest) -> Iterator[Caches]:
    with ExitStack() as stack:
        if request.param.backend == "emulated":
            device = stack.enter_context(as_it_usually_is(emulation()))
            device.set_compute_capability(request.param.capability)
        stack.enter_context(backend_of_ops(request.param.backend))
        yield request.param


@pytest.mark.parametrize("caches", of_caches(CACHES | CONVERTS | ON_CUDA), indirect=True)
@pytest.mark.parametrize("dtype", HALF_TYPES)
@pytest.mark.parametrize("head_size", [64, 80, 96, 128, 256])
def test_every_head_size(caches, head_size, dtype):
    chunks = caches.batch([3, 0, 16, 33], [20, 0, 17, 133], dtype, head_size=head_size)
    assert_as_exact_as_torch(prefill(chunks), chunks)
    decodes = caches.batch([1, 1, 1, 1], [1, 16, 17, 300], dtype, head_size=head_size)
    assert_as_exact_as_torch(decode(decodes), decodes)


@pytest.mark.parametrize("head_size", [64, 80, 96, 128, 256])
def test_float32_takes_the_plain_path(caches, head_size):
    options = {"head_size": head_size, "kv_dtype": caches.kv_dtype or torch.float32}
    chunks = paged_batch([3, 0, 5], [20, 0, 37], **options)
    assert_as_exact_as_torch(prefill(chunks, window=9), chunks, window=9)
    decodes = paged_batch([1, 1], [1, 70], **options)
    assert_as_exact_as_torch(decode(decodes, softcap=3.0), decodes, softcap=3.0)


@pytest.mark.parametrize(("q_heads", "kv_heads"), [(24, 4), (28, 4), (40, 8), (6, 2), (71, 1), (4, 4)])
def test_every_group_size(caches, q_heads, kv_heads):
    chunks = caches.batch([7, 20], [7, 45], num_q_heads=q_heads, num_kv_heads=kv_heads)
    assert_as_exact_as_torch(prefill(chunks), chunks)
    decodes = caches.batch([1, 1], [5, 40], num_q_heads=q_heads, num_kv_heads=kv_heads)
    assert_as_exact_as_torch(decode(decodes), decodes)


@pytest.mark.parametrize("block_size", [16, 32, 64])
def test_every_block_size(caches, block_size):
    chunks = caches.batch([40, 3], [130, 65], block_size=block_size, head_size=128)
    assert_as_exact_as_torch(prefill(chunks), chunks)
    decodes = caches.batch([1, 1], [130, 65], block_size=block_size, head_size=128)
    assert_as_exact_as_torch(decode(decodes), decodes)


@pytest.mark.parametrize("window", [1, 16, 17, 100])
def test_a_window_hides_what_lies_before_it(caches, window):
    chunks = caches.batch([50, 1, 70], [130, 40, 70])
    assert_as_exact_as_torch(prefill(chunks, window), chunks, window)
    decodes = caches.batch([1, 1, 1], [3, 90, 131])
    assert_as_exact_as_torch(decode(decodes, window), decodes, window)


@pytest.mark.parametrize("window", [0, 17])
def test_a_soft_cap_bounds_the_scores(caches, window):
    chunks = caches.batch([40], [100], spread=30.0)
    assert_as_exact_as_torch(prefill(chunks, window, softcap=5.0), chunks, window, softcap=5.0)
    decodes = caches.batch([1, 1], [30, 100], spread=30.0)
    assert_as_exact_as_torch(decode(decodes, window, softcap=5.0), decodes, window, softcap=5.0)


@pytest.mark.parametrize("head_size", [64, 128, 256])
def test_a_step_of_decodes_and_chunks(caches, head_size):
    batch = caches.batch([1, 1, 1, 40, 3], [300, 1, 17, 140, 3], head_size=head_size)
    assert_as_exact_as_torch(attend(batch, 3), batch)


def test_views_of_a_fused_row_and_rows_before_the_range(backend):
    """A mixed step: decodes first, then chunks, in one output; q is a view into fused qkv rows."""
    batch = half_batch([2, 9], [30, 9])
    fused = torch.full((13, 10 * 64), math.nan, dtype=torch.bfloat16)
    fused[2:, : 6 * 64] = batch.q.reshape(11, 6 * 64)
    q = fused[:, : 6 * 64].unflatten(1, (6, 64))
    out = torch.full((13, 6, 64), 7.0, dtype=torch.bfloat16)
    ops.prefill_attention(
        q,
        batch.k_cache,
        batch.v_cache,
        batch.block_table,
        batch.cu_seqlens_q + 2,
        batch.context_lens,
        out,
        batch.scale,
    )
    assert (out[:2] == 7).all()
    assert_as_exact_as_torch(out[2:], batch)


def test_a_decode_without_context_is_zero(backend):
    decodes = half_batch([1, 1, 1], [0, 20, 0])
    out = decode(decodes)
    assert (out[[0, 2]] == 0).all()
    assert out[1].isfinite().all()


@pytest.mark.parametrize("length", [8192, 12289, 65536, 131072])
def test_a_long_context_keeps_its_first_and_last_key(backend, length):
    decodes = half_batch([1], [length], num_q_heads=2, num_kv_heads=1)
    for needle in (0, length - 1):
        key, value = decodes.keys[0].clone(), decodes.values[0].clone()
        key[needle] = 4 * decodes.q[0, 0]
        value[needle] = 3
        decodes.k_cache.fill_(math.nan)
        decodes.v_cache.fill_(math.nan)
        blocks = decodes.block_table[0, : math.ceil(length / 16)].long()
        for cache, rows in ((decodes.k_cache, key), (decodes.v_cache, value)):
            position = torch.arange(length)
            cache[blocks[position // 16], :, position % 16] = rows
        assert decode(decodes)[0, 0].float().sub(3).abs().max() < 0.05


@pytest.mark.parametrize("caches", of_caches(CACHES), indirect=True)
@pytest.mark.parametrize("multiprocessors", [1, 4, 16, 132])
def test_the_number_of_splits_does_not_change_the_result(caches, multiprocessors):
    emulation().set_num_multiprocessors(multiprocessors)
    decodes = caches.batch([1, 1, 1], [33, 2097, 0], num_q_heads=4, num_kv_heads=1)
    out = decode(decodes)
    assert_as_exact_as_torch(out, decodes)
    assert (out[2] == 0).all()
    chunks = caches.batch([5, 3, 40], [700, 3, 300], num_q_heads=2, num_kv_heads=1)
    assert_as_exact_as_torch(prefill(chunks), chunks)


@pytest.mark.parametrize("kv_heads", [1, 3, 8])
@pytest.mark.parametrize("capability", [80, 90])
def test_the_size_of_the_cache_decides_the_order_of_heads_and_not_the_result(emulated, capability, kv_heads):
    """From a section for each head to one for all; at 100 KiB there are two heads or so to a section."""
    emulated.set_compute_capability(capability)
    chunks = half_batch([5, 0, 40], [90, 3, 200], num_q_heads=kv_heads, num_kv_heads=kv_heads)
    results = []
    for size in (1, 100 * 1024, 250 * 1024, 2**40):
        emulated.set_l2_bytes(size)
        results.append(prefill(chunks))
    assert_as_exact_as_torch(results[0], chunks)
    assert all(torch.equal(result, results[0]) for result in results)


def test_a_short_decode_beside_a_long_one_leaves_empty_splits(emulated):
    """Eight or more splits of a table for 4097 keys: those of 33 keys are mostly empty and weigh nothing."""
    emulated.set_num_multiprocessors(16)
    both = half_batch([1, 1], [33, 4097], num_q_heads=2, num_kv_heads=1)
    alone = decode(
        PagedBatch(
            both.q[:1],
            both.k_cache,
            both.v_cache,
            both.block_table[:1, :3],
            both.cu_seqlens_q[:2],
            both.context_lens[:1],
            both.keys[:1],
            both.values[:1],
        )
    )
    emulated.reset_counters()
    together = decode(both)[:1]
    assert emulated.counters()["blocks"] > 16  # it was split
    torch.testing.assert_close(together, alone, rtol=2**-8, atol=2**-8)


def test_the_order_of_warps_and_blocks_does_not_matter(emulated):
    chunks = half_batch([40, 5], [90, 70])
    decodes = half_batch([1, 1], [90, 600])
    results = []
    for seed in range(4):
        emulated.set_seed(seed)
        results.append((prefill(chunks), decode(decodes)))
    for chunk_rows, decode_rows in results[1:]:
        assert torch.equal(chunk_rows, results[0][0])
        assert torch.equal(decode_rows, results[0][1])


@pytest.mark.parametrize("caches", of_caches(CACHES), indirect=True)
def test_matrix_loads_have_no_bank_conflicts(caches):
    for head_size in (64, 80, 96, 128, 256):
        prefill(caches.batch([17], [40], num_q_heads=1, num_kv_heads=1, head_size=head_size))
        decode(caches.batch([1], [40], num_q_heads=1, num_kv_heads=1, head_size=head_size))
    counters = emulation().counters()
    assert counters["matrix_loads"] > 1000
    assert counters["matrix_load_conflicts"] == 0


def test_blocks_beyond_32_bit_offsets(emulated):
    """A cache of 140,000 blocks, 8 heads of 128: only the pages that are touched take memory."""
    shape = (140_000, 8, 16, 128)
    cache = torch.empty(shape, dtype=torch.bfloat16)
    small = half_batch([20], [70], num_q_heads=8, num_kv_heads=8, head_size=128)
    high = torch.tensor([65535, 65536, 131071, 131072, 139999])
    blocks = small.block_table[0, :5].long()
    # One tensor serves as both caches, so keys and values are the same here.
    expected = torch.full_like(small.q, math.nan)
    arguments = (small.cu_seqlens_q, small.context_lens)
    ops.prefill_attention(small.q, small.k_cache, small.k_cache, small.block_table, *arguments, expected, small.scale)
    rows = small.k_cache[blocks].nan_to_num()
    cache[high] = 0
    slots = (high[torch.arange(70) // 16] * 16 + torch.arange(70) % 16).long()
    ops.write_kv(small.keys[0], small.keys[0], cache, cache, slots)
    assert torch.equal(cache[high], rows)
    out = torch.full_like(small.q, math.nan)
    ops.prefill_attention(small.q, cache, cache, high.int()[None], *arguments, out, small.scale)
    assert torch.equal(out, expected)
    q = small.q[-1:]
    decoded = torch.full_like(q, math.nan)
    ops.decode_attention(q, cache, cache, high.int()[None], small.context_lens, decoded, small.scale)
    torch.testing.assert_close(decoded, expected[-1:], rtol=2**-7, atol=2**-7)


def test_two_thousand_requests_of_32_heads(emulated):
    """More blocks than a grid has in y and z."""
    decodes = half_batch([1] * 2048, [1] * 2048, num_q_heads=32, num_kv_heads=1)
    out = decode(decodes)
    assert torch.equal(out, torch.stack([value.expand(32, 64) for value in torch.cat(decodes.values)]))


def test_a_prefill_of_65537_tokens(emulated):
    chunk = half_batch([65_537], [65_537], num_q_heads=1, num_kv_heads=1)
    assert torch.equal(prefill(chunk, window=1), chunk.values[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"head_size": 72}, "head_size must be 64, 80, 96, 128 or 256, got 72"),
        ({"block_size": 8}, "block_size must be a power of two from 16 on, got 8"),
        ({"kv_dtype": torch.float16}, "the caches must have the dtype of the activations"),
    ],
)
def test_what_the_kernels_cannot_do_is_refused_by_name(backend, options, message):
    batch = paged_batch([1], [5], **{"dtype": torch.bfloat16, "kv_dtype": torch.bfloat16, **options})
    for op, run in (("prefill_attention", prefill), ("decode_attention", decode)):
        with pytest.raises(Exception, match=f"{op}: .*{message}"):
            run(batch)


def test_a_page_outside_the_cache_is_a_fault(emulated):
    batch = half_batch([3], [20])
    batch.block_table[0, 1] = batch.k_cache.shape[0]
    for run in (prefill, decode):
        with pytest.raises(RuntimeError, match=r"_attention: block \(\d+, 0, 0\), thread \d+, pages.cuh:\d+: .*_cache"):
            run(batch if run is prefill else half_decode_of(batch))


def half_decode_of(batch: PagedBatch) -> PagedBatch:
    return PagedBatch(
        batch.q[-1:],
        batch.k_cache,
        batch.v_cache,
        batch.block_table,
        torch.tensor([0, 1], dtype=torch.int32),
        batch.context_lens,
        batch.keys,
        batch.values,
    )
