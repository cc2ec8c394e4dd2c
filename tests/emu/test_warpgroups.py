"""Emulated warps and warpgroups of Hopper: an elected lane, registers that move, and devices that have neither."""

from __future__ import annotations

import pytest

from tests.emu.hopper_probes import probes, run


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
