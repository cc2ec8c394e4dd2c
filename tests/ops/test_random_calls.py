"""The ops of the paged cache on calls that Hypothesis makes up.

They are apart from the other tests of their ops so that those run on machines that have pytest and nothing else.
"""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ops import test_copy_blocks, test_decode_attention, test_prefill_attention, test_write_kv
from tests.ops.attention_calls import decode, prefill
from tests.ops.attention_reference import FLOAT8, PagedBatch, paged_batch
from tests.ops.reference import DTYPES

KV_DTYPES = [*DTYPES, FLOAT8]
WINDOWS = st.sampled_from([0, 1, 20, 64])
SOFTCAPS = st.sampled_from([0.0, 5.0])


@settings(max_examples=50, deadline=None)
@given(pairs=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=12))
def test_pairs_are_copied_in_order(pairs: list[tuple[int, int]]) -> None:
    k_cache, v_cache = torch.randn(2, 6, 2, 4, 8)
    test_copy_blocks.check(k_cache, v_cache, pairs)


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_any_distinct_slots(data: st.DataObject) -> None:
    block_size = data.draw(st.sampled_from([16, 32, 64]))
    num_blocks, num_heads = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 3))
    written = data.draw(st.sets(st.integers(0, num_blocks * block_size - 1)))
    skipped = data.draw(st.integers(0, 3))
    slot_mapping = data.draw(st.permutations([*written, *[-1] * skipped]))
    k, v = torch.randn(2, len(slot_mapping), num_heads, 8)
    test_write_kv.check(
        k,
        v,
        *test_write_kv.caches(num_blocks, num_heads, block_size, 8, torch.float32),
        torch.tensor(slot_mapping, dtype=torch.int64),
    )


@st.composite
def batches_of_decodes(draw: st.DrawFn) -> PagedBatch:
    num_kv_heads = draw(st.integers(1, 3))
    return test_decode_attention.decode_batch(
        draw(st.lists(st.integers(0, 400), min_size=1, max_size=6)),
        num_kv_heads * draw(st.integers(1, 9)),
        num_kv_heads,
        draw(st.sampled_from([8, 16, 40, 64, 128])),
        block_size=draw(st.sampled_from([8, 16, 32])),
        dtype=draw(st.sampled_from(DTYPES)),
        kv_dtype=draw(st.sampled_from(KV_DTYPES)),
        spread=draw(st.sampled_from([0.1, 1.0, 10.0])),
        seed=draw(st.integers(0, 2**31)),
    )


@given(batches_of_decodes(), WINDOWS, SOFTCAPS)
@settings(max_examples=25, deadline=None)
def test_decodes(batch: PagedBatch, window: int, softcap: float) -> None:
    out = decode(batch, window, softcap)
    test_decode_attention.assert_as_exact_as_torch(out, batch, window, softcap)


@st.composite
def batches_of_chunks(draw: st.DrawFn) -> PagedBatch:
    requests = draw(st.integers(1, 4))
    context_lens = draw(st.lists(st.integers(0, 130), min_size=requests, max_size=requests))
    num_kv_heads = draw(st.integers(1, 2))
    return paged_batch(
        [draw(st.integers(0, length)) for length in context_lens],
        context_lens,
        num_kv_heads * draw(st.integers(1, 4)),
        num_kv_heads,
        draw(st.sampled_from([8, 16, 40, 64])),
        draw(st.sampled_from([8, 16, 32])),
        draw(st.sampled_from(DTYPES)),
        draw(st.sampled_from(KV_DTYPES)),
        draw(st.sampled_from([0.1, 1.0, 10.0])),
        draw(st.integers(0, 2**31)),
    )


@given(batches_of_chunks(), WINDOWS, SOFTCAPS)
@settings(max_examples=25, deadline=None)
def test_chunks(batch: PagedBatch, window: int, softcap: float) -> None:
    out = prefill(batch, window, softcap)
    test_prefill_attention.assert_as_exact_as_torch(out, batch, window, softcap)
