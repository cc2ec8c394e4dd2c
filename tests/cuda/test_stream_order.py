"""Every kernel waits for the one before it: the ops on a device where kernels begin early.

The emulated device then puts a kernel before each op that makes all of the op's tensors at the last moment.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from cudaprefill import ops
from tests.cuda import test_add_lora, test_elementwise
from tests.cuda.backends import as_it_usually_is, backend_of_ops, emulation
from tests.cuda.test_attention import half_batch
from tests.ops.attention_calls import decode, prefill
from tests.ops.attention_reference import FLOAT8, assert_as_exact_as_torch, in_float8, paged_batch
from tests.ops.expert_cases import expert_case
from tests.ops.lora_cases import lora_case

DTYPES = (torch.float32, torch.bfloat16)


@pytest.fixture(params=[1, 4], ids=["one multiprocessor", "four"], autouse=True)
def device(request: pytest.FixtureRequest) -> Iterator[object]:
    with as_it_usually_is(emulation()) as device, backend_of_ops("emulated"):
        device.set_compute_capability(90)
        device.set_num_multiprocessors(request.param)
        device.set_prefill_kernel("mma")
        device.set_decode_kernel("async")
        yield device


@pytest.mark.parametrize("dtype", DTYPES)
def test_kernels_around_attention(dtype):
    test_elementwise.test_write_kv_writes_its_slots_and_no_other("emulated", 64, dtype)
    test_elementwise.test_copy_blocks_takes_the_pairs_in_order("emulated", dtype)
    test_elementwise.test_rope_write_kv("emulated", 64, 64, True, dtype)
    test_elementwise.test_rms_norm_with_and_without_a_residual("emulated", 576, dtype)
    for op in ("silu_and_mul", "gelu_tanh_and_mul"):
        test_elementwise.test_activate_and_mul("emulated", op, 2056, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_experts(dtype):
    expert_case(20, 5, 2, dtype=dtype).check()


@pytest.mark.parametrize("dtype", DTYPES)
def test_lora(dtype):
    test_add_lora.check(lora_case([[12, 24], [5, 0]], [20, 3], part_outputs=(72, 40), dtype=dtype))


def test_attention_in_float32():
    batch = paged_batch([3, 0, 5], [20, 0, 37])
    assert_as_exact_as_torch(prefill(batch), batch)
    batch = paged_batch([1, 1], [1, 70])
    assert_as_exact_as_torch(decode(batch), batch)


@pytest.mark.parametrize("tensor_kernels", [False, True])
def test_attention_with_parts_that_are_merged(device, tensor_kernels):
    if tensor_kernels:
        device.set_prefill_kernel("tensor")
        device.set_decode_kernel("tensor")
    batch = half_batch([40, 3, 0, 90], [700, 3, 0, 90], num_q_heads=2, num_kv_heads=1)
    assert_as_exact_as_torch(prefill(batch), batch)
    batch = half_batch([1, 1, 1], [33, 900, 0], num_q_heads=2, num_kv_heads=1)
    assert_as_exact_as_torch(decode(batch), batch)


def test_float8_caches():
    ones = torch.ones(2)
    rows = torch.randn(1, 2, 64).bfloat16()
    k_cache, v_cache = torch.zeros(2, 1, 2, 16, 64).to(FLOAT8)
    ops.write_kv(rows, -rows, k_cache, v_cache, torch.tensor([3]), ones, ones)
    assert torch.equal(k_cache[0, :, 3].float(), in_float8(rows, ones)[0].float())
    assert torch.equal(v_cache[0, :, 3].float(), in_float8(-rows, ones)[0].float())
    batch = half_batch([5, 1], [40, 300], kv_dtype=FLOAT8)
    assert_as_exact_as_torch(prefill(batch), batch)


def test_a_fault_leaves_the_tensors_as_they_were():
    batch = half_batch([3], [20])
    batch.block_table[0, 1] = batch.k_cache.shape[0]
    tensors = (batch.q, batch.k_cache, batch.block_table, batch.cu_seqlens_q, batch.context_lens)
    before = [tensor.clone() for tensor in tensors]
    with pytest.raises(RuntimeError, match="invalid global read"):
        prefill(batch)
    for tensor, expected in zip(tensors, before, strict=True):
        torch.testing.assert_close(tensor, expected, rtol=0, atol=0, equal_nan=True)
