"""Emulated mbarriers keep the rules of the PTX ISA: phases, arrivals, expected bytes."""

from __future__ import annotations

import pytest

from tests.emu.hopper_probes import for_some_seed, probes, run


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
