"""The attention kernels over float8 caches, of every device: converted by an instruction, or from their bits."""

from __future__ import annotations

import pytest

pytest.importorskip("hypothesis")

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cuda.test_attention import HALF_TYPES, half_batch
from tests.cuda.test_attention_properties import PROPERTY, REQUEST, SHAPE, batch_of
from tests.ops.attention_calls import attend, decode, prefill
from tests.ops.attention_reference import FLOAT8, PagedBatch, assert_as_exact_as_torch, paged_batch

CAPABILITIES = (80, 89, 90)
SOME = settings(PROPERTY, max_examples=12)


@pytest.fixture(params=CAPABILITIES)
def device(emulated, request: pytest.FixtureRequest) -> object:
    emulated.set_compute_capability(request.param)
    return emulated


@pytest.fixture
def hopper(emulated) -> object:
    """With one multiprocessor, so that every stage is used again."""
    emulated.set_compute_capability(90)
    emulated.set_num_multiprocessors(1)
    return emulated


def float8_batch(*args, **options) -> PagedBatch:
    return half_batch(*args, **{"kv_dtype": FLOAT8, **options})


@pytest.mark.parametrize("dtype", HALF_TYPES)
@pytest.mark.parametrize("head_size", [64, 80, 96, 128, 256])
def test_every_head_size(device, head_size, dtype):
    chunks = float8_batch([3, 0, 16, 33], [20, 0, 17, 133], dtype, head_size=head_size)
    assert_as_exact_as_torch(prefill(chunks), chunks)
    decodes = float8_batch([1, 1, 1, 1], [1, 16, 17, 300], dtype, head_size=head_size)
    assert_as_exact_as_torch(decode(decodes), decodes)


@pytest.mark.parametrize("head_size", [64, 80, 256])
def test_float32_takes_the_plain_path(device, head_size):
    chunks = paged_batch([3, 0, 5], [20, 0, 37], head_size=head_size, kv_dtype=FLOAT8)
    assert_as_exact_as_torch(prefill(chunks, window=9), chunks, window=9)
    decodes = paged_batch([1, 1], [1, 70], head_size=head_size, kv_dtype=FLOAT8)
    assert_as_exact_as_torch(decode(decodes, softcap=3.0), decodes, softcap=3.0)


@pytest.mark.parametrize(("q_heads", "kv_heads"), [(24, 4), (40, 8), (71, 1), (4, 4)])
def test_every_group_size(device, q_heads, kv_heads):
    chunks = float8_batch([7, 20], [7, 45], num_q_heads=q_heads, num_kv_heads=kv_heads)
    assert_as_exact_as_torch(prefill(chunks), chunks)
    decodes = float8_batch([1, 1], [5, 40], num_q_heads=q_heads, num_kv_heads=kv_heads)
    assert_as_exact_as_torch(decode(decodes), decodes)


@pytest.mark.parametrize("block_size", [16, 32, 64])
def test_every_block_size(device, block_size):
    chunks = float8_batch([40, 3], [130, 65], block_size=block_size, head_size=128)
    assert_as_exact_as_torch(prefill(chunks), chunks)
    decodes = float8_batch([1, 1], [130, 65], block_size=block_size, head_size=128)
    assert_as_exact_as_torch(decode(decodes), decodes)


@pytest.mark.parametrize("softcap", [0.0, 5.0])
@pytest.mark.parametrize("window", [1, 17, 100])
def test_a_window_and_a_soft_cap(device, window, softcap):
    chunks = float8_batch([50, 1, 70], [130, 40, 70], spread=10.0)
    assert_as_exact_as_torch(prefill(chunks, window, softcap), chunks, window, softcap)
    decodes = float8_batch([1, 1, 1], [3, 90, 131], spread=10.0)
    assert_as_exact_as_torch(decode(decodes, window, softcap), decodes, window, softcap)


@pytest.mark.parametrize("head_size", [64, 128, 256])
def test_a_step_of_decodes_and_chunks(device, head_size):
    batch = float8_batch([1, 1, 1, 40, 3], [300, 1, 17, 140, 3], head_size=head_size)
    assert_as_exact_as_torch(attend(batch, 3), batch)


@pytest.mark.parametrize("multiprocessors", [1, 16, 132])
def test_the_number_of_splits_does_not_change_the_result(device, multiprocessors):
    device.set_num_multiprocessors(multiprocessors)
    decodes = float8_batch([1, 1, 1], [33, 2097, 0], num_q_heads=4, num_kv_heads=1)
    out = decode(decodes)
    assert_as_exact_as_torch(out, decodes)
    assert (out[2] == 0).all()
    chunks = float8_batch([5, 3, 40], [700, 3, 300], num_q_heads=2, num_kv_heads=1)
    assert_as_exact_as_torch(prefill(chunks), chunks)


def test_matrix_loads_have_no_bank_conflicts(emulated):
    for head_size in (64, 80, 96, 128, 256):
        prefill(float8_batch([17], [40], num_q_heads=1, num_kv_heads=1, head_size=head_size))
        decode(float8_batch([1], [40], num_q_heads=1, num_kv_heads=1, head_size=head_size))
    counters = emulated.counters()
    assert counters["matrix_loads"] > 1000
    assert counters["matrix_load_conflicts"] == 0


@SOME
@given(requests=st.lists(REQUEST, min_size=1, max_size=5), **SHAPE)
def test_prefill(emulated, requests, heads, head_size, block_size, dtype, window, multiprocessors, seed):
    emulated.set_num_multiprocessors(multiprocessors)
    emulated.set_seed(seed)
    new = [new for new, _ in requests]
    lengths = [new + cached for new, cached in requests]
    batch = batch_of(new, lengths, heads, head_size, block_size, dtype, seed, kv_dtype=FLOAT8)
    assert_as_exact_as_torch(prefill(batch, window), batch, window)


@SOME
@given(lengths=st.lists(st.integers(0, 700), min_size=1, max_size=5), capability=st.sampled_from(CAPABILITIES), **SHAPE)
def test_decode(emulated, lengths, capability, heads, head_size, block_size, dtype, window, multiprocessors, seed):
    emulated.set_num_multiprocessors(multiprocessors)
    emulated.set_seed(seed)
    emulated.set_compute_capability(capability)
    batch = batch_of([1] * len(lengths), lengths, heads, head_size, block_size, dtype, seed, kv_dtype=FLOAT8)
    out = decode(batch, window)
    assert_as_exact_as_torch(out, batch, window)
    assert all((out[i] == 0).all() for i, length in enumerate(lengths) if length == 0)


@pytest.mark.parametrize("dtype", HALF_TYPES)
@pytest.mark.parametrize("head_size", [64, 128, 256])
@pytest.mark.parametrize("window", [0, 700])
def test_hopper_decodes_by_tensor_copies(hopper, window, head_size, dtype):
    """Rows end within the share of a warp."""
    batch = float8_batch(
        [1] * 5, [30, 1900, 0, 5, 1330], dtype, num_q_heads=4, num_kv_heads=2, head_size=head_size, block_size=32
    )
    assert_as_exact_as_torch(decode(batch, window), batch, window)
    assert hopper.counters()["tensor_copies"] > 2 * 8 * 6
    assert hopper.counters()["matrix_load_conflicts"] == 0


@pytest.mark.parametrize("dtype", HALF_TYPES)
@pytest.mark.parametrize("head_size", [64, 128, 256])
@pytest.mark.parametrize("window", [0, 100])
def test_hopper_widens_what_its_products_multiply(hopper, window, head_size, dtype):
    """At head size 256, where no memory is left to widen in, the older kernel serves."""
    batch = float8_batch([210, 3, 0, 70], [210, 420, 0, 500], dtype, num_q_heads=4, num_kv_heads=2, head_size=head_size)
    for seed in range(2):
        hopper.set_seed(seed)
        hopper.reset_counters()
        assert_as_exact_as_torch(prefill(batch, window), batch, window)
        counters = hopper.counters()
        assert (counters["products"] > 0) == (head_size <= 128)
        assert counters["tensor_copies"] == 0


def test_hopper_takes_decodes_and_chunks_from_one_queue(hopper):
    batch = float8_batch([1, 1, 5, 130], [900, 40, 300, 260], num_q_heads=4, num_kv_heads=2, head_size=128)
    assert_as_exact_as_torch(attend(batch, 2), batch)
    assert hopper.counters()["tensor_copies"] == 0  # which decodes alone would have come by
