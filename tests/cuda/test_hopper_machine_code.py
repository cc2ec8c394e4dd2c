"""What `make cuda` reads from the machine code of the Hopper kernels, on listings as the disassembler prints them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "csrc/cuda/machine_code.py"
spec = importlib.util.spec_from_file_location("machine_code", SOURCE)
machine_code = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = machine_code  # where dataclasses look their module up
spec.loader.exec_module(machine_code)

LISTING = """
        /*0000*/                   S2R R0, SR_TID.X ;                    /* 0x0000000000007919 */
        /*0004*/                   ACQBULK ;                             /* 0x000000000000782e */
        /*0008*/                   PREEXIT ;                             /* 0x000000000000782d */
        /*0010*/                   USETMAXREG.TRY_ALLOC.CTAPOOL UP0, 0xe8 ;  /* 0x000000e8000079c8 */
        /*0020*/                   HGMMA.64x128x16.F32.BF16 R24, gdesc[UR4], R24, gsb0 ;  /* 0x01e0000004187df0 */
        /*0030*/                   HGMMA.64x128x16.F32.BF16 R24, R152, gdesc[UR8], R24 ;  /* 0x01e00000081879f0 */
        /*0040*/              @!P0 LDG.E.128 R200, [R6.64] ;             /* 0x0000000606c88381 */
        /*0050*/                   EXIT ;                                /* 0x000000000000794d */
        /*0060*/                   USETMAXREG.DEALLOC.CTAPOOL 0x28 ;     /* 0x00000028000079c8 */
        /*0070*/              @UP1 UTMALDG.5D [UR16], [UR10] ;           /* 0x0000001610007fb4 */
        /*0080*/                   IMAD.WIDE R30, R2, 0x4, R8 ;          /* 0x00000004021e7825 */
        /*0090*/                   EXIT ;                                /* 0x000000000000794d */
        /*00a0*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [R99+URZ], R6 ;  /* 0x0000000663ff75a7 */
"""
NAME = "prefill_sm90_kernel<BFloat16, 128, kTensor>"


def read(listing: str):
    return machine_code.read_listing("symbol", listing)


def test_instructions_are_counted_whatever_their_suffixes_and_predicates():
    counted = read(LISTING).instructions
    assert counted["HGMMA"] == 2
    assert counted["UTMALDG"] == 1
    assert counted["USETMAXREG"] == 2
    assert counted["LDG"] == 1


def test_registers_are_those_of_the_part_with_all_that_an_operand_takes():
    code = read(LISTING)
    assert code.granted == {"consumer": 232, "producer": 40}
    assert code.highest["consumer"] == 204  # R200 to R203; the accumulators end at R87, those of A at R155
    assert code.highest["producer"] == 32  # R30 and R31; what follows the last EXIT is a rare path of either


def test_a_kernel_with_all_that_it_is_there_for_has_no_problems():
    assert machine_code.problems_of(NAME, read(LISTING)) == []


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        ("HGMMA.64x128x16.F32.BF16", "HMMA.16816.F32", "no HGMMA in the machine code"),
        ("UTMALDG.5D", "UTMASTG.5D", "no UTMALDG in the machine code"),
        ("USETMAXREG", "NOP", "no USETMAXREG in the machine code"),
        ("LDG.E.128", "LDGSTS.E.128", "1 LDGSTS in the machine code"),
        ("LDG.E.128 R200", "LDL.128 R200", "1 LDL in the machine code"),
        ("R200", "R230", "the consumer uses 234 registers and has 232"),
        ("R30", "R40", "the producer uses 42 registers and has 40"),
        ("ACQBULK", "NOP", "no ACQBULK in the machine code"),
        ("PREEXIT", "NOP", "no PREEXIT in the machine code"),
        ("S2R R0, SR_TID.X", "LDG.E R0, [R2.64]", "LDG before ACQBULK"),
    ],
)
def test_what_a_kernel_lacks_or_has_too_much_is_named(before, after, problem):
    assert f"{NAME}: {problem}" in machine_code.problems_of(NAME, read(LISTING.replace(before, after)))


def test_the_variant_by_cp_async_has_no_tensor_copies():
    problems = machine_code.problems_of(NAME.replace("kTensor", "kAsync"), read(LISTING))
    assert [problem.rpartition(": ")[2] for problem in problems] == [
        "no LDGSTS in the machine code",
        "1 UTMALDG in the machine code",
    ]


DECODE = """
        /*0000*/                   ACQBULK ;                             /* 0x000000000000782e */
        /*0008*/                   PREEXIT ;                             /* 0x000000000000782d */
        /*000c*/              @UP1 UTMALDG.5D [UR16], [UR10] ;           /* 0x0000001610007fb4 */
        /*0010*/                   LDSM.16.M88.4 R8, [R2] ;              /* 0x000000000208783b */
        /*0020*/                   HMMA.16816.F32.BF16 R4, R8, R12, R4 ;  /* 0x0000000c0804723c */
        /*0030*/                   EXIT ;                                /* 0x000000000000794d */
"""


@pytest.mark.parametrize(
    ("before", "after", "problems"),
    [
        ("", "", []),
        ("UTMALDG.5D [UR16], [UR10]", "LDGSTS.E.128 [R16], [R10]", ["no UTMALDG", "1 LDGSTS"]),
        ("HMMA.16816.F32.BF16", "FFMA", ["no HMMA"]),
        ("LDSM.16.M88.4", "LDL.128", ["no LDSM", "1 LDL"]),
    ],
)
def test_a_decode_multiplies_what_tensor_copies_bring(before, after, problems):
    found = machine_code.problems_of("decode_sm90_kernel<BFloat16, 128>", read(DECODE.replace(before, after)))
    expected = [f"decode_sm90_kernel<BFloat16, 128>: {problem} in the machine code" for problem in problems]
    assert found == expected


def test_other_kernels_need_nothing_but_their_place_in_the_stream():
    name = "merge_decode_sm90_kernel<Half, 64>"
    assert machine_code.problems_of(name, read(DECODE)) == []
    assert machine_code.problems_of(name, read(DECODE.replace("ACQBULK", "NOP"))) == [
        f"{name}: no ACQBULK in the machine code",
        f"{name}: UTMALDG before ACQBULK",
    ]
