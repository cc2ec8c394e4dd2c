"""Whatever the lengths, heads, window, device size and order of warps: the kernels are as exact as torch."""

from __future__ import annotations

import pytest

pytest.importorskip("hypothesis")

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.cuda.test_attention import HALF_TYPES, half_batch
from tests.ops.attention_calls import decode, prefill
from tests.ops.attention_reference import FLOAT8, assert_as_exact_as_torch

REQUEST = st.tuples(st.integers(0, 40), st.integers(0, 150))  # new tokens, cached tokens
SHAPE = {
    "heads": st.sampled_from([(1, 1), (3, 1), (6, 2), (8, 1), (20, 1), (5, 5)]),
    "head_size": st.sampled_from([64, 80, 96, 128]),
    "block_size": st.sampled_from([16, 32, 64]),
    "dtype": st.sampled_from(HALF_TYPES),
    "kv_dtype": st.sampled_from([None, None, None, FLOAT8]),
    "window": st.sampled_from([0, 0, 1, 20, 64]),
    "multiprocessors": st.sampled_from([1, 3, 50]),
    "seed": st.integers(0, 1000),
}
EARLIER = st.sampled_from([80, 89])  # the Hopper kernels have these tests, too, beside their others
PROPERTY = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def batch_of(query_lens, context_lens, heads, head_size, block_size, dtype, kv_dtype, seed):
    return half_batch(
        query_lens,
        context_lens,
        dtype,
        kv_dtype,
        num_q_heads=heads[0],
        num_kv_heads=heads[1],
        head_size=head_size,
        block_size=block_size,
        seed=seed,
    )


@PROPERTY
@given(requests=st.lists(REQUEST, min_size=1, max_size=5), capability=EARLIER, **SHAPE)
def test_prefill(
    emulated, requests, capability, heads, head_size, block_size, dtype, kv_dtype, window, multiprocessors, seed
):
    emulated.set_compute_capability(capability)
    emulated.set_num_multiprocessors(multiprocessors)
    emulated.set_seed(seed)
    new = [new for new, _ in requests]
    batch = batch_of(
        new, [new + cached for new, cached in requests], heads, head_size, block_size, dtype, kv_dtype, seed
    )
    assert_as_exact_as_torch(prefill(batch, window), batch, window)


@PROPERTY
@given(context_lens=st.lists(st.integers(0, 700), min_size=1, max_size=5), capability=EARLIER, **SHAPE)
def test_decode(
    emulated, context_lens, capability, heads, head_size, block_size, dtype, kv_dtype, window, multiprocessors, seed
):
    emulated.set_compute_capability(capability)
    emulated.set_num_multiprocessors(multiprocessors)
    emulated.set_seed(seed)
    batch = batch_of([1] * len(context_lens), context_lens, heads, head_size, block_size, dtype, kv_dtype, seed)
    out = decode(batch, window)
    assert_as_exact_as_torch(out, batch, window)
    assert all((out[i] == 0).all() for i, length in enumerate(context_lens) if length == 0)
