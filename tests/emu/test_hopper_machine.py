"""The emulation of Hopper's instructions keeps the rules of the PTX ISA: kernels in hopper_probes.cu."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

probes = pytest.importorskip(
    "tests.emu._hopper_probes", reason="the emulation is not built (CUDAPREFILL_BUILD_TESTS=OFF)"
)

UNTOUCHED = 0xEEEEEEEE
SWIZZLE_BYTES = (0, 32, 64, 128)  # by the number of the mode
ROW_BYTES = 128  # of a line of all banks, by which the swizzle goes


def run(probe, choice=0, size=512):
    out = np.full(size, UNTOUCHED, dtype=np.uint32)
    probe(out, choice=choice)
    return out


def for_some_seed(call):
    """Runs the warps in several orders."""
    for seed in range(8):
        probes.set_seed(seed)
        call()


def place_of_chunk(swizzle_bytes: int, row: int, chunk: int) -> int:
    """Where chunk `chunk` of 16 bytes of a row as long as the swizzle spans lies within its row.

    The ISA draws the patterns: 128 bytes exchange eight chunks by each row, 64 bytes four chunks by every second row,
    32 bytes two chunks by every fourth row.
    """
    if swizzle_bytes == 0:
        return chunk
    rows_of_line = ROW_BYTES // swizzle_bytes
    return chunk ^ (row // rows_of_line % (swizzle_bytes // 16))


# --- mbarrier ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_a_ring_of_mbarriers_passes_data_on_by_phases(seed):
    probes.set_seed(seed)
    assert list(run(probes.mbarrier_ring)[:96]) == [100 * r + (i + 1) % 32 for r in range(3) for i in range(32)]


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (1, "race: no barrier lies between|deadlock"),  # the producer does not wait
        (2, "race: no barrier lies between|deadlock"),  # the consumer waits for the phase before
        (3, r"no barrier lies between this and mbarrier.init by thread 0"),
    ],
)
def test_a_ring_with_a_wait_missing_is_a_race_or_goes_out_of_step(choice, message):
    with pytest.raises(probes.Fault, match=message):
        for_some_seed(lambda: run(probes.mbarrier_ring, choice))


def test_a_deadlock_names_the_mbarriers_with_their_phase_and_counts():
    probes.set_seed(0)
    with pytest.raises(
        probes.Fault,
        match=r"deadlock: threads 32-63 wait at the mbarrier at byte 0 for a phase of parity 1, which is in phase 1 "
        r"and lacks 32 of 32 arrivals and 0 bytes \(hopper_probes.cu:\d+\); threads 0-31 wait at the mbarrier at byte "
        r"8 for a phase of parity 0, which is in phase 0 and lacks 1 of 33 arrivals",
    ):
        run(probes.mbarrier_ring, 5)


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (0, "mbarrier.arrive: there is no mbarrier at byte 0"),
        (1, r"mbarrier.init: 0 arrivals, not in 1..1048575"),
        (2, "mbarrier.init: there is an mbarrier already"),
        (3, "touches the memory of an mbarrier"),
        (4, "mbarrier.arrive: all 2 arrivals of this phase have been, and it waits for bytes"),
        (5, "lacks 0 of 2 arrivals and 48 bytes"),
        (6, "mbarrier.init: shared address 1028 is not a multiple of 8"),
        (7, r"more than 2\^20 - 1 bytes are expected"),
    ],
)
def test_misuse_of_an_mbarrier_is_a_fault(choice, message):
    with pytest.raises(probes.Fault, match=message):
        run(probes.mbarrier_misuse, choice)


# --- tensor copies ----------------------------------------------------------------------------------------------------


def copy_box(source, extent, stride_bytes, box, swizzle, first, choice=0, probe=None):
    """Shared memory, 16-bit elements, after the copy of one box."""
    out = np.full(max(np.prod(box) // 2, 64), UNTOUCHED, dtype=np.uint32)
    (probe or probes.tensor_copy)(source, extent, stride_bytes, box, swizzle, first, out, choice=choice)
    return out.view(np.uint16)


def expected_box(source, extent, stride_bytes, box, swizzle, first):
    """Element by element: the box in the order of its dimensions, zeros outside, swizzled row by row."""
    row_bytes = SWIZZLE_BYTES[swizzle] or 16
    expected = np.zeros(np.prod(box), dtype=np.uint16)
    for number, place in enumerate(itertools.product(*(range(n) for n in reversed(box)))):
        at = [start + offset for start, offset in zip(first, reversed(place), strict=True)]
        inside = all(0 <= x < n for x, n in zip(at, extent, strict=True))
        offset = at[0] + sum(x * stride // 2 for x, stride in zip(at[1:], stride_bytes, strict=True))
        row, byte = divmod(2 * number, row_bytes)
        chunk = place_of_chunk(SWIZZLE_BYTES[swizzle], row, byte // 16)
        expected[(row * row_bytes + chunk * 16 + byte % 16) // 2] = source[offset] if inside else 0
    return expected


SOURCE = np.arange(1, 4097, dtype=np.uint16)


@pytest.mark.parametrize("swizzle", range(4))
def test_a_box_lands_in_the_order_of_its_dimensions_and_swizzled(swizzle):
    inner = SWIZZLE_BYTES[swizzle] // 2 or 24
    for extent, stride_bytes, box, first in [
        ([64], [], [inner], [8]),
        ([64, 32], [128], [inner, 16], [0, 3]),
        ([64, 8, 2, 2, 2], [128, 1024, 2048, 4096], [inner, 8, 2, 2, 1], [0, 0, 0, 0, 1]),
        ([40, 5, 3, 2], [112, 640, 2048], [inner, 4, 2, 2], [0, 1, 1, 0]),
    ]:
        arguments = (SOURCE, extent, stride_bytes, box, swizzle, first)
        got, expected = copy_box(*arguments), expected_box(*arguments)
        assert np.array_equal(got[: len(expected)], expected)


@pytest.mark.parametrize("first", [[-3, 0, 0], [60, 0, 0], [0, -1, 0], [0, 6, 1], [0, 0, 2], [0, 0, -1], [64, 8, 2]])
def test_what_lies_outside_the_tensor_is_zero_and_counted(first):
    arguments = (SOURCE, [64, 8, 2], [128, 1024], [64, 8, 1], 3, first)
    assert np.array_equal(copy_box(*arguments), expected_box(*arguments))


def test_a_box_may_be_larger_than_the_tensor():
    arguments = (SOURCE, [16, 3], [64], [64, 8], 3, [0, 0])
    assert np.array_equal(copy_box(*arguments), expected_box(*arguments))


@pytest.mark.parametrize(
    ("extent", "stride_bytes", "box", "swizzle", "message"),
    [
        ([64, 8], [120], [64, 8], 3, "the stride, no multiple of 16 below 2.40, of dimension 1 is 120"),
        ([64, 8], [128], [64, 257], 3, "the box, not in 1..256, of dimension 1 is 257"),
        ([64, 8], [128], [12, 8], 3, "the inner bytes of the box, no multiple of 16, of dimension 0 is 24"),
        ([256, 8], [512], [128, 8], 3, "more than the swizzle spans, of dimension 0 is 256"),
        ([64, 0], [128], [64, 8], 3, "the extent, not in 1..2.32, of dimension 1 is 0"),
    ],
)
def test_a_map_that_the_driver_would_refuse_is_refused(extent, stride_bytes, box, swizzle, message):
    with pytest.raises(ValueError, match=message):
        copy_box(SOURCE, extent, stride_bytes, box, swizzle, [0, 0])


PAGE = ([64, 16], [128], [64, 16], 3, [0, 0])


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (1, "cp.async.bulk.tensor: no fence lies between this and mbarrier.init"),
        (2, "no fence.proxy.async lies between this access of the asynchronous proxy to byte 1024 .* by thread 0"),
        (4, "shared address 2176 is not a multiple of 1024, after which the swizzle repeats"),
        (6, "the block has ended, and 1 tensor copies have not landed"),
        (7, "touches shared memory that an unfinished tensor copy is about to write"),
        (8, "touches shared memory that an unfinished tensor copy is about to write"),  # the wrong phase
    ],
)
def test_a_careless_tensor_copy_is_a_fault(choice, message):
    with pytest.raises(probes.Fault, match=message):
        copy_box(SOURCE, *PAGE, choice=choice)


def test_a_fenced_write_may_be_overwritten_by_a_tensor_copy():
    assert np.array_equal(copy_box(SOURCE, *PAGE, choice=3), expected_box(SOURCE, *PAGE))


def test_a_tensor_copy_reads_its_source_as_late_as_the_wait_allows():
    assert list(copy_box(SOURCE.copy(), *PAGE, choice=5)[:2]) == [0xABCD, 0xABCD]


def test_a_read_beyond_the_memory_behind_the_map_is_a_fault():
    with pytest.raises(probes.Fault, match=r"invalid global read by cp\.async\.bulk\.tensor: at byte 8192 of source"):
        copy_box(SOURCE, [64, 100], [128], [64, 16], 3, [0, 64])


def test_a_tensor_copy_over_what_is_still_read_is_a_race():
    with pytest.raises(probes.Fault, match=r"race: .* the read by thread 32|touches shared memory"):
        for_some_seed(lambda: copy_box(SOURCE, *PAGE, probe=probes.tensor_copy_over_reader))
    copy_box(SOURCE, *PAGE, choice=1, probe=probes.tensor_copy_over_reader)


# --- wgmma ------------------------------------------------------------------------------------------------------------


def descriptor(start: int, leading: int, stride: int, swizzle_bytes: int, base_offset: int = 0) -> int:
    """The bits of a matrix descriptor, as the ISA lists them."""
    mode = {0: 0, 128: 1, 64: 2, 32: 3}[swizzle_bytes]
    return start >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | base_offset << 49 | mode << 62


class Image:
    """What shared memory holds from DATA_AT on, and matrices in it."""

    def __init__(self, dtype: torch.dtype, size: int = 48 * 1024) -> None:
        self.dtype = dtype
        self.elements = torch.full((size // 2,), torch.nan, dtype=dtype)

    def _put(self, byte: int, values: torch.Tensor) -> None:
        self.elements[byte // 2 : byte // 2 + 8] = values

    def place_rows(self, matrix: torch.Tensor, at: int, swizzle_bytes: int, leading: int, stride: int) -> int:
        """[rows, 16], K-major: groups of eight rows, `stride` apart. Returns the descriptor."""
        row_bytes = swizzle_bytes or 16
        for row, chunk in itertools.product(range(matrix.shape[0]), range(2)):
            values = matrix[row, 8 * chunk : 8 * chunk + 8]
            if swizzle_bytes == 0:
                self._put(at + row // 8 * stride + row % 8 * 16 + chunk * leading, values)
            else:
                place = place_of_chunk(swizzle_bytes, row % 8, chunk)
                self._put(at + row // 8 * stride + row % 8 * row_bytes + place * 16, values)
        return descriptor(probes.DATA_AT + at, leading, stride, swizzle_bytes)

    def place_columns(self, matrix: torch.Tensor, at: int, swizzle_bytes: int, leading: int, stride: int) -> int:
        """[columns, 16], MN-major: rows of the inner dimension, as long as the swizzle, in groups of eight."""
        row_bytes = swizzle_bytes or 16
        chunks_of_row = row_bytes // 16
        across, along = (stride, leading) if swizzle_bytes == 0 else (leading, stride)
        for inner, chunk in itertools.product(range(16), range(matrix.shape[0] // 8)):
            values = matrix[8 * chunk : 8 * chunk + 8, inner]
            group, in_row = divmod(chunk, chunks_of_row)
            place = place_of_chunk(swizzle_bytes, inner % 8, in_row)
            self._put(at + inner // 8 * along + group * across + inner % 8 * row_bytes + place * 16, values)
        return descriptor(probes.DATA_AT + at, leading, stride, swizzle_bytes)

    def words(self) -> np.ndarray:
        return self.elements.view(torch.int16).numpy().view(np.uint32)


def fragments_of(a: torch.Tensor) -> np.ndarray:
    """A [64, 16] over the registers of a warpgroup, from the ISA's formulas for wgmma.m64k16, element by element."""
    fragments = torch.empty(128, 8, dtype=a.dtype)
    for thread, i in itertools.product(range(128), range(8)):
        warp, lane = divmod(thread, 32)
        row = 16 * warp + (lane >> 2) + (0 if i < 2 or 4 <= i < 6 else 8)
        column = lane % 4 * 2 + (i & 1) + (0 if i < 4 else 8)
        fragments[thread, i] = a[row, column]
    return fragments.view(torch.int16).numpy().view(np.uint32).ravel()


def accumulators_of(out: np.ndarray, columns: int) -> torch.Tensor:
    """C [64, columns] from the registers, by the formulas of wgmma's matrix D."""
    registers = out[: 64 * columns].view(np.float32).reshape(128, columns // 2)
    c = torch.empty(64, columns)
    for thread, i in itertools.product(range(128), range(columns // 2)):
        warp, lane = divmod(thread, 32)
        c[16 * warp + (lane >> 2) + 8 * (i // 2 % 2), i // 4 * 8 + lane % 4 * 2 + i % 2] = float(registers[thread, i])
    return c


def operands(columns, dtype):
    random = torch.Generator().manual_seed(columns)
    return torch.randn(64, 16, generator=random).to(dtype), torch.randn(columns, 16, generator=random).to(dtype)


def multiply(image, a, fragments, b, columns, transposed, choice=0):
    out = np.zeros(64 * columns, dtype=np.uint32)
    half = image.dtype == torch.float16
    probes.product(image.words(), a, fragments, b, columns, half, transposed, out, choice=choice)
    return accumulators_of(out, columns)


NO_FRAGMENTS = np.zeros(512, dtype=np.uint32)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("columns", [64, 80, 128, 256])
def test_a_product_of_shared_matrices(columns, dtype):
    a, b = operands(columns, dtype)
    image = Image(dtype)
    first = image.place_rows(a, 0, 128, leading=0, stride=1024)
    second = image.place_rows(b, 8192, 128, leading=0, stride=1024)
    expected = a.double() @ b.double().T
    for accumulate in (0, 1):
        c = multiply(image, first, NO_FRAGMENTS, second, columns, transposed=False, choice=accumulate)
        torch.testing.assert_close(c.double(), expected + accumulate, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("columns", [64, 80, 128, 256])
def test_a_product_with_a_in_registers(columns, dtype):
    a, b = operands(columns, dtype)
    image = Image(dtype)
    second = image.place_rows(b, 0, 128, leading=0, stride=1024)
    c = multiply(image, None, fragments_of(a), second, columns, transposed=False)
    torch.testing.assert_close(c.double(), a.double() @ b.double().T, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("swizzle_bytes", SWIZZLE_BYTES)
@pytest.mark.parametrize("transposed", [False, True])
def test_every_layout_that_a_descriptor_can_name(swizzle_bytes, transposed):
    """Offsets with gaps, so that no two of them can be exchanged unseen."""
    a, b = operands(128, torch.bfloat16)
    image = Image(torch.bfloat16, 64 * 1024)
    row_bytes = swizzle_bytes or 16
    first = image.place_rows(a, 0, swizzle_bytes, leading=4096, stride=16 * row_bytes)
    place = image.place_columns if transposed else image.place_rows
    if transposed and swizzle_bytes:
        second = place(b, 16 * 1024, swizzle_bytes, leading=16 * row_bytes + 1024, stride=8 * row_bytes + 8192)
    else:
        second = place(b, 16 * 1024, swizzle_bytes, leading=16384, stride=1024)
    c = multiply(image, first, NO_FRAGMENTS, second, 128, transposed)
    torch.testing.assert_close(c.double(), a.double() @ b.double().T, atol=2e-5, rtol=1e-5)


def test_a_start_inside_a_swizzled_row_takes_the_next_elements_of_it():
    """Four steps of 16 lie in one row of 128 bytes: the start moves by 32 bytes, the swizzle stays."""
    random = torch.Generator().manual_seed(0)
    a = torch.randn(64, 16, generator=random).bfloat16()
    wide = torch.randn(64, 64, generator=random).bfloat16()
    image = Image(torch.bfloat16)
    for row, chunk in itertools.product(range(64), range(8)):
        image._put(row * 128 + (chunk ^ row % 8) * 16, wide[row, 8 * chunk : 8 * chunk + 8])
    for step in range(4):
        b = descriptor(probes.DATA_AT + 32 * step, 0, 1024, 128)
        c = multiply(image, None, fragments_of(a), b, 64, transposed=False)
        expected = a.double() @ wide[:, 16 * step : 16 * step + 16].double().T
        torch.testing.assert_close(c.double(), expected, atol=2e-5, rtol=1e-5)


def test_a_pattern_that_begins_off_its_repetition_needs_the_base_offset():
    """The matrix begins 3 rows of 128 bytes into a repetition, and so does its pattern: chunks count from there."""
    a, b = operands(64, torch.bfloat16)
    image = Image(torch.bfloat16)
    image.place_rows(b, 384, 128, leading=0, stride=1024)
    start = probes.DATA_AT + 384
    c = multiply(image, None, fragments_of(a), descriptor(start, 0, 1024, 128, base_offset=3), 64, transposed=False)
    torch.testing.assert_close(c.double(), a.double() @ b.double().T, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (2, "wgmma: no fence.proxy.async lies between this access of the asynchronous proxy"),
        (3, "wgmma: race: no barrier lies between|wgmma: no fence.proxy.async"),
        (5, "wgmma: a batch begins without wgmma.fence"),
        (6, r"divergent warpgroup: warp \d has issued \d wgmma, another one \d"),
        (7, "overwrites shared memory that an unfinished wgmma is about to read"),
        (8, "wgmma: an accumulator was written while the product was unfinished"),
        (9, "the block has ended, and warp 0 has not waited for its wgmma"),
    ],
)
def test_a_careless_product_is_a_fault(choice, message):
    a, b = operands(64, torch.bfloat16)
    image = Image(torch.bfloat16, 16 * 1024)
    image.elements.fill_(0)
    second = image.place_rows(b, 0, 128, leading=0, stride=1024)
    with pytest.raises(probes.Fault, match=message):
        multiply(image, None, fragments_of(a), second, 64, transposed=False, choice=choice)


@pytest.mark.parametrize("choice", [10, 11])
def test_accumulators_are_nan_until_their_batch_is_waited_for(choice):
    a, b = operands(64, torch.bfloat16)
    image = Image(torch.bfloat16)
    second = image.place_rows(b, 0, 128, leading=0, stride=1024)
    c = multiply(image, None, fragments_of(a), second, 64, transposed=False, choice=choice)
    assert c.isnan().all()


# --- warpgroups -------------------------------------------------------------------------------------------------------


def test_one_lane_is_elected_and_not_always_the_first():
    lanes = set()
    for seed in range(8):
        probes.set_seed(seed)
        elected = run(probes.elected_lane)[:32]
        assert elected.sum() == 1
        lanes.add(int(elected.argmax()))
    assert len(lanes) > 3


def test_registers_move_between_warpgroups():
    assert (run(probes.registers)[:384] == 1).all()


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (1, r"deadlock: .*threads \d+-\d+ wait for 240 registers a thread, for which \d+ of 2304 are free"),
        (2, "setmaxnreg: 100 is not a multiple of 8 from 24 to 256"),
        (3, "setmaxnreg: a decrease from 168 to 240 registers"),
        (4, "setmaxnreg: warp 1 has 24 registers, and the first of its warpgroup 168"),
    ],
)
def test_registers_that_cannot_be_had_are_reported(choice, message):
    with pytest.raises(probes.Fault, match=message):
        run(probes.registers, choice)


@pytest.mark.parametrize(
    ("probe", "instruction"),
    [("mbarrier_ring", "mbarrier.init"), ("elected_lane", "elect.sync"), ("registers", "setmaxnreg")],
)
def test_a_device_below_9_0_does_not_have_them(probe, instruction):
    probes.set_compute_capability(80)
    try:
        with pytest.raises(probes.Fault, match=f"{instruction} on a device of compute capability 8.0"):
            run(getattr(probes, probe))
    finally:
        probes.set_compute_capability(90)
