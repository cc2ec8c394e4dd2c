"""The tests see the faults that they are there for: each mutant of the kernels fails, in the way that it must."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from cudaprefill import ops
from tests.cuda.backends import NOT_BUILT, as_it_usually_is, define_library, emulation, functions_of, ops_replaced_by
from tests.cuda.test_add_lora import check as check_lora
from tests.cuda.test_attention import half_batch
from tests.emu.mutants import MUTANTS, Mutant
from tests.ops.attention_calls import attend, decode, prefill
from tests.ops.attention_reference import FLOAT8, assert_as_exact_as_torch, in_float8
from tests.ops.expert_cases import expert_case
from tests.ops.lora_cases import LoraCase, lora_case


def chunks(device):
    device.set_num_multiprocessors(1)  # two thread blocks, so that one takes several items
    batch = half_batch([40, 3, 0, 90], [140, 3, 0, 90], num_q_heads=2, num_kv_heads=1)
    assert_as_exact_as_torch(prefill(batch), batch)


def parts(device):
    """A tile whose keys are shared out over thread blocks."""
    device.set_num_multiprocessors(8)
    batch = half_batch([40], [900], num_q_heads=2, num_kv_heads=1)
    assert_as_exact_as_torch(prefill(batch), batch)


def windows(device):
    batch = half_batch([70], [200], num_q_heads=2, num_kv_heads=1)
    assert_as_exact_as_torch(prefill(batch, window=30), batch, window=30)


def decodes(device):
    device.set_num_multiprocessors(1)
    batch = half_batch([1, 1], [30, 400], num_q_heads=2, num_kv_heads=1)
    assert_as_exact_as_torch(decode(batch), batch)


def sections(device):
    """Three KV heads, two at once."""
    device.set_l2_bytes(2 * 2 * 2 * 64 * 2 * 112)
    batch = half_batch([40, 60], [70, 80], num_q_heads=3, num_kv_heads=3)
    assert_as_exact_as_torch(prefill(batch), batch)


def splits(device):
    device.set_num_multiprocessors(16)
    batch = half_batch([1, 1, 1], [33, 2100, 0], num_q_heads=2, num_kv_heads=1)
    out = decode(batch)
    assert out.isfinite().all(), "error nan"
    assert_as_exact_as_torch(out, batch)


def a_large_cache(device):
    cache = torch.empty(140_000, 16, 16, 64, dtype=torch.bfloat16)
    cache[139_999] = 0
    q = torch.zeros(1, 16, 64, dtype=torch.bfloat16)
    table = torch.tensor([[139_999]], dtype=torch.int32)
    lens = torch.tensor([16], dtype=torch.int32)
    ops.decode_attention(q, cache, cache, table, lens, torch.empty_like(q), 1.0)


def an_exact_table(device):
    batch = half_batch([20], [70], num_q_heads=2, num_kv_heads=1)
    batch = replace(batch, block_table=batch.block_table[:, :5].contiguous())
    assert_as_exact_as_torch(prefill(batch), batch)


def hopper_chunks(device, copies="tensor", head_size=128, exact_table=False):
    """A Hopper device with one multiprocessor, so one thread block takes all items; every stage is used again."""
    device.set_compute_capability(90)
    device.set_prefill_kernel(copies)
    device.set_num_multiprocessors(1)
    batch = half_batch([40, 3, 0, 90], [620, 3, 0, 90], num_q_heads=2, num_kv_heads=1, head_size=head_size)
    if exact_table:
        batch = half_batch([20], [70], num_q_heads=2, num_kv_heads=1, head_size=128)
        batch = replace(batch, block_table=batch.block_table[:, :5].contiguous())
    for seed in range(3):
        device.set_seed(seed)
        assert_as_exact_as_torch(prefill(batch), batch)


def lora(device):
    case = lora_case([[12, 24], [5, 0]], [20, 3], num_inputs=320, part_outputs=(72, 40), dtype=torch.bfloat16)
    check_lora(case)


def lora_of_many_adapters(device):
    check_lora(lora_case([[4]] * 40, [i % 3 for i in range(40)], dtype=torch.bfloat16))


def lora_far_rows(device):
    case = lora_case([[16]], [2], base_rows=1, dtype=torch.bfloat16)
    wide = torch.empty(3, 2**30 + 64, dtype=torch.bfloat16)
    x, out = wide[:, :48], wide[:, 64:160]
    x.copy_(case.x)
    out.copy_(case.out)
    check_lora(LoraCase(out, x, case.rows, case.adapters, case.stored))


def hopper_decodes(device, window=0, exact_table=False):
    """Eight warps on one multiprocessor: rows that end within a share, and rows that several warps share."""
    device.set_compute_capability(90)
    device.set_num_multiprocessors(1)
    batch = half_batch([1] * 5, [30, 900, 0, 5, 330], num_q_heads=4, num_kv_heads=2, head_size=128)
    if exact_table:
        batch = half_batch([1], [70], num_q_heads=2, num_kv_heads=1, head_size=128)
        batch = replace(batch, block_table=batch.block_table[:, :5].contiguous())
    for seed in range(3):
        device.set_seed(seed)
        assert_as_exact_as_torch(decode(batch, window), batch, window)


def hopper_mixed(device):
    """Narrow tiles and wide ones on one multiprocessor."""
    device.set_compute_capability(90)
    device.set_num_multiprocessors(1)
    batch = half_batch([1, 1, 5, 130], [900, 40, 300, 260], num_q_heads=2, num_kv_heads=1, head_size=128)
    for seed in range(3):
        device.set_seed(seed)
        assert_as_exact_as_torch(attend(batch, 2), batch)


def float8_chunks(device, capability=80, head_size=64):
    """On a Hopper device every stage is used again."""
    device.set_compute_capability(capability)
    device.set_num_multiprocessors(1)
    options = {"num_q_heads": 4, "num_kv_heads": 2, "head_size": head_size, "kv_dtype": FLOAT8}
    batch = half_batch([40, 3, 0, 90], [620, 3, 0, 90], **options)
    assert_as_exact_as_torch(prefill(batch), batch)


def float8_decodes(device, capability=80, head_size=64):
    """On a Hopper device eight warps share the rows, and some end within a share."""
    device.set_compute_capability(capability)
    device.set_num_multiprocessors(1)
    lengths = [30, 900, 0, 5, 330]
    options = {"num_q_heads": 4, "num_kv_heads": 2, "head_size": head_size, "kv_dtype": FLOAT8}
    batch = half_batch([1] * 5, lengths, **options)
    assert_as_exact_as_torch(decode(batch), batch)


def float8_nan(device):
    batch = half_batch([1], [20], num_q_heads=2, num_kv_heads=1, kv_dtype=FLOAT8)
    batch.k_cache[batch.block_table[0, 0], 0, 3, 5] = torch.nan
    assert decode(batch).isnan().all(), "nan became a number"


def float8_writes(device):
    numbers = torch.tensor([1.0, 447.9, 449.0, -500.0, 1e9, -torch.inf, 17.0, 19.0]).repeat(8)[None, None]
    cache = torch.zeros(2, 1, 1, 16, 64).to(FLOAT8)
    ones = torch.ones(1)
    ops.write_kv(numbers, numbers, *cache, torch.tensor([3]), ones, ones)
    for stored in cache[:, 0, 0, 3].float():
        assert torch.equal(stored, in_float8(numbers, ones)[0, 0].float()), f"stored as {stored}"


def experts(device):
    """More than a tile of pairs for one expert, and experts without any."""
    device.set_num_multiprocessors(2)
    expert_case(90, 6, 2, hidden=136, inner=72, dtype=torch.bfloat16).check()


def norms(device):
    x, weight = torch.randn(3, 64), torch.randn(64)
    torch.testing.assert_close(ops.rms_norm(x, weight, 1e-5), torch.nn.functional.rms_norm(x, (64,), weight, 1e-5))


def rope(device):
    """A turn of half a circle."""
    k_cache, v_cache = torch.zeros(2, 1, 1, 16, 64)
    q, k, v = torch.randn(3, 1, 1, 64)
    expected = -q
    cos_sin = torch.tensor([[-1.0] * 32 + [0.0] * 32])
    ops.rope_write_kv(q, k, v, cos_sin, torch.tensor([0]), k_cache, v_cache, torch.tensor([5]))
    torch.testing.assert_close(q, expected)
    torch.testing.assert_close(k_cache[0, 0, 5], -k[0, 0])


def overlapping(case, device):
    """A device whose kernels begin early, and the kernels that all devices have."""
    device.set_compute_capability(90)
    device.set_prefill_kernel("mma")
    device.set_decode_kernel("async")
    case(device)


CASES = {
    "an exact table": an_exact_table,
    "chunks": chunks,
    "windows": windows,
    "sections of heads": sections,
    "decodes": decodes,
    "splits": splits,
    "a large cache": a_large_cache,
    "lora": lora,
    "lora, many adapters": lora_of_many_adapters,
    "lora, far rows": lora_far_rows,
    "float8 chunks": float8_chunks,
    "float8 decodes": float8_decodes,
    "float8 nan": float8_nan,
    "float8 writes": float8_writes,
    "hopper float8 decodes": partial(float8_decodes, capability=90, head_size=128),
    "hopper float8 chunks": partial(float8_chunks, capability=90, head_size=128),
    "experts": experts,
    **{
        f"{case.__name__}, overlapping": partial(overlapping, case)
        for case in (chunks, parts, decodes, splits, lora, experts, norms, rope)
    },
    "hopper chunks": hopper_chunks,
    "hopper, an exact table": partial(hopper_chunks, exact_table=True),
    "hopper mixed": hopper_mixed,
    "hopper decodes": hopper_decodes,
    "hopper decodes, a window": partial(hopper_decodes, window=100),
    "hopper decodes, an exact table": partial(hopper_decodes, exact_table=True),
    "hopper, by cp.async": partial(hopper_chunks, copies="async"),
    "hopper, by cp.async with one stage of queries": partial(hopper_chunks, copies="async", head_size=256),
}


@pytest.mark.parametrize("case", CASES)
def test_the_kernels_pass_what_their_mutants_fail(emulated, case):
    CASES[case](emulated)


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=lambda mutant: mutant.name)
def test_a_mutant_fails(mutant: Mutant):
    emulation()  # skips where nothing is built
    built = list(Path(__file__).with_name("_mutants").joinpath(mutant.name).glob("_emulation.*"))
    if not built:
        pytest.skip(NOT_BUILT)
    spec = importlib.util.spec_from_file_location(f"tests.emu._mutants.{mutant.name}._emulation", built[0])
    device = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(device)
    library = f"cudaprefill_mutant_{mutant.name}"
    define_library(library)
    device.register_kernels(library)
    with (
        as_it_usually_is(device),
        ops_replaced_by(functions_of(library)),
        pytest.raises((RuntimeError, AssertionError), match=re.compile(mutant.report)),
    ):
        CASES[mutant.caught_by](device)
