"""The emulated machine keeps the rules of CUDA, and says so when a kernel breaks one: kernels in probes.cu."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

probes = pytest.importorskip("tests.emu._probes", reason="the emulation is not built (CUDAPREFILL_BUILD_TESTS=OFF)")


def run(probe, input=None, choice=0, size=256, **options):
    """Runs a probe and returns what it wrote; what it did not write is 0xEEEEEEEE."""
    out = np.full(size, 0xEEEEEEEE, dtype=np.uint32)
    probe(np.zeros(64, dtype=np.uint32) if input is None else input, out, choice=choice, **options)
    return out


# --- shared memory ----------------------------------------------------------------------------------------------------


def test_unwritten_shared_memory_is_nan():
    assert np.isnan(run(probes.shared_access)[:1].view(np.float32))[0]


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (1, r"shared_access: block \(0, 0, 0\), thread 0, probes.cu:\d+: at byte 2048 of the 2048 bytes"),
        (2, "at byte -1024 of the 2048 bytes of shared memory"),
        (3, "not a multiple of 4"),
        (4, "at byte -4 of"),
    ],
)
def test_shared_access_out_of_bounds_is_a_fault(choice, message):
    with pytest.raises(probes.Fault, match=message):
        run(probes.shared_access, choice=choice)


def test_reading_what_another_thread_wrote_needs_a_barrier():
    with pytest.raises(
        probes.Fault, match=r"race: no barrier lies between .* the (write|read) by thread \d+ at probes.cu:\d+"
    ):
        run(probes.neighbours, choice=0)
    assert list(run(probes.neighbours, choice=1)[:64]) == [*range(1, 64), 0]


def test_syncwarp_orders_a_warp_but_not_the_block():
    assert list(run(probes.neighbours, choice=2, threads=32)[:32]) == [*range(1, 32), 0]
    with pytest.raises(probes.Fault, match="race"):
        run(probes.neighbours, choice=2, threads=64)


def test_overwriting_what_another_thread_reads_needs_a_barrier():
    with pytest.raises(probes.Fault, match="the read by thread"):
        run(probes.overwrite_after_read, choice=0)
    run(probes.overwrite_after_read, choice=1)


# --- barriers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (0, r"divergent barrier: __syncthreads here, while threads [-\d, ]+ are in the one at probes.cu:\d+"),
        (1, r"deadlock: threads 32-63 have ended; threads 0-31 wait at barrier 0 \(probes.cu:\d+\)"),
        (2, r"deadlock: threads 32-63 have ended; threads 0-31 wait at barrier 3"),
        (3, r"barrier 3 is asked to wait for \d+ threads here and for \d+ at"),
        (5, "divergent warp: "),
    ],
)
def test_a_barrier_that_cannot_complete_is_reported(choice, message):
    with pytest.raises(probes.Fault, match=message):
        run(probes.barriers, choice=choice, threads=128 if choice == 3 else 64)


def test_a_producer_arrives_at_a_named_barrier_without_waiting():
    assert list(run(probes.barriers, choice=4)[32:64]) == [i + 7 for i in range(32)]


# --- global memory ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (0, "invalid global read of 4 bytes: at byte 256 of in, which has 256 bytes"),
        (1, "at byte -4 of in"),
        (2, "invalid global write of 4 bytes: in is read-only"),
        (3, "invalid global read of 16 bytes: the address is not a multiple of 16"),
        (4, "invalid global read of 16 bytes: at byte 256 of in"),
        (5, "by cp.async: at byte 256 of in"),
    ],
)
def test_global_access_outside_the_tensors_is_a_fault(choice, message):
    aligned = np.zeros(128, dtype=np.uint32)
    start = (-aligned.ctypes.data // 4) % 4
    with pytest.raises(probes.Fault, match=message):
        run(probes.global_access, aligned[start : start + 64], choice=choice)


def test_following_a_device_pointer_unchecked_crashes():
    script = (
        "import numpy as np; from tests.emu import _probes as p; a = np.zeros(64, np.uint32); p.global_access(a, a, 6)"
    )
    root = Path(__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True).returncode < 0


# --- cp.async ---------------------------------------------------------------------------------------------------------


def test_reading_before_the_wait_is_a_fault():
    with pytest.raises(probes.Fault, match=r"unfinished cp.async"):
        run(probes.async_copies, np.arange(128, dtype=np.uint32), choice=0)


@pytest.mark.parametrize("choice", [1, 2])
def test_a_wait_finishes_all_but_the_latest_groups(choice):
    out = run(probes.async_copies, np.arange(128, dtype=np.uint32), choice=choice)
    assert list(out[:32]) == [4 * ((lane + 1) % 32) for lane in range(32)]


def test_the_copies_of_other_threads_need_a_barrier_after_the_wait():
    with pytest.raises(probes.Fault, match=r"unfinished cp.async|race"):
        run(probes.async_copies, np.arange(128, dtype=np.uint32), choice=3)


def test_an_invalid_copy_writes_zeros_and_reads_nothing():
    out = run(probes.async_copies, np.arange(100, 228, dtype=np.uint32), choice=4)
    assert out[4] == 0
    assert out[5] == 100 + 4 * 6


def test_a_copy_reads_its_source_as_late_as_the_wait_allows():
    assert run(probes.late_copy, size=4)[1] == 2


# --- warp instructions ------------------------------------------------------------------------------------------------


def test_shuffles_and_votes():
    lanes = np.arange(32)
    for choice, expected in enumerate(
        [
            np.full(32, 3),
            lanes // 8 * 8 + 1,
            lanes ^ 5,
            np.where(lanes >= 2, lanes - 2, lanes),
            np.full(32, sum(1 << lane for lane in range(0, 32, 3))),
            np.full(32, 1 + 4),
        ]
    ):
        assert list(run(probes.shuffles, choice=choice)[:32]) == list(expected)
    assert list(run(probes.shuffles, choice=6)[:8]) == list(lanes[:8] ^ 1)
    with pytest.raises(probes.Fault, match="outside its mask"):
        run(probes.shuffles, choice=7)


def test_a_matrix_load_spreads_rows_over_lanes():
    """Lane 4 g + t holds elements 2t, 2t + 1 of row g; of column g where transposed."""
    matrices = np.arange(256, dtype=np.uint16).reshape(4, 8, 8)
    for choice, source in enumerate([matrices, matrices.transpose(0, 2, 1)]):
        registers = run(probes.matrix_load, matrices.ravel().view(np.uint32), choice)[:128].view(np.uint16)
        registers = registers.reshape(32, 4, 2)
        for lane in range(32):
            g, t = divmod(lane, 4)
            for m in range(4):
                assert list(registers[lane, m]) == list(source[m, g, 2 * t : 2 * t + 2])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_matrix_product_takes_the_fragments_of_the_isa(dtype):
    """The PTX ISA, "Matrix Fragments for mma.m16n8k16": written out here from its formulas, element by element."""
    random = torch.Generator().manual_seed(1)
    a = torch.randn(16, 16, generator=random).to(dtype)
    b = torch.randn(16, 8, generator=random).to(dtype)
    fragments = torch.empty(32, 12, dtype=dtype)
    for lane in range(32):
        group, in_group = lane >> 2, lane % 4
        for i in range(8):
            row = group if i < 2 or 4 <= i < 6 else group + 8
            column = in_group * 2 + (i & 1) + (0 if i < 4 else 8)
            fragments[lane, i] = a[row, column]
        for i in range(4):
            row = in_group * 2 + (i & 1) + (0 if i < 2 else 8)
            fragments[lane, 8 + i] = b[row, group]
    probe = probes.matrix_product_bfloat16 if dtype == torch.bfloat16 else probes.matrix_product_float16
    out = run(probe, fragments.view(torch.int16).numpy().view(np.uint32).ravel())[:128].view(np.float32).reshape(32, 4)
    expected = a.double() @ b.double() + 1
    for lane in range(32):
        group, in_group = lane >> 2, lane % 4
        for i in range(4):
            row = group if i < 2 else group + 8
            assert out[lane, i] == pytest.approx(expected[row, in_group * 2 + (i & 1)].item(), abs=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_conversion_rounds_as_torch_does(dtype):
    values = torch.tensor([0.0, -0.0, 1.0, 1 + 2**-9, 1 + 2**-8, 1 + 3 * 2**-9, 65504, 65519, 65520, 1e-8, -6e-8, 3e38])
    values = torch.cat(
        [values, torch.randn(50, generator=torch.Generator().manual_seed(0)), torch.tensor([torch.inf, -torch.inf])]
    )
    probe = probes.convert_bfloat16 if dtype == torch.bfloat16 else probes.convert_float16
    out = torch.from_numpy(run(probe, values.numpy().view(np.uint32))[:64].view(np.float32).copy())
    assert torch.equal(out, values.to(dtype).float())


# --- the machine ------------------------------------------------------------------------------------------------------


def test_a_seed_fixes_the_order_of_the_warps():
    def order(seed):
        probes.set_seed(seed)
        return tuple(run(probes.order_of_warps)[:8])

    orders = {seed: order(seed) for seed in range(8)}
    assert all(sorted(o) == list(range(8)) for o in orders.values())
    assert len(set(orders.values())) > 4
    assert order(3) == orders[3]


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((1, 65536, 32, 0), r"grid.y is 65536, not in 1..65535"),
        ((0, 1, 32, 0), r"grid.x is 0"),
        ((1, 1, 2048, 0), r"block size is 2048, not in 1..1024"),
        ((1, 1, 32, 101377), r"shared memory is 101377, not in 0..101376"),
    ],
)
def test_a_launch_beyond_the_limits_is_refused(shape, message):
    with pytest.raises(probes.Fault, match=message):
        probes.launch(*shape)
