"""How long the calling thread wants to keep a core before others get their turn, where the system can be told (Linux).

A thread with short turns does not get more time than others, but gets it sooner: when it wakes it takes the core from a
thread with longer turns at once, which otherwise may end its own first. So an event loop need not wait for the kernels
that keep all cores busy. Threads inherit the length of the one that starts them.
"""

from __future__ import annotations

import ctypes
import platform
import struct
import sys

SHORT = 0.0001  # seconds: the least that Linux knows

# sched_setattr and sched_getattr; a turn of a normal thread is theirs to set since Linux 6.12.
_CALLS = {"x86_64": (314, 315), "aarch64": (274, 275)}
_ATTRIBUTES = struct.Struct("=IIQiIQQQII")  # size, policy, flags, nice, priority, runtime, deadline, period, two clamps
_RUNTIME = 5


def set_turn(seconds: float | None) -> bool:
    """None: the system's own choice. Returns whether the system took it; nothing depends on that but speed."""
    calls = _CALLS.get(platform.machine())
    if calls is None or not sys.platform.startswith("linux"):
        return False
    set_attributes, get_attributes = calls
    system = ctypes.CDLL(None).syscall
    found = ctypes.create_string_buffer(_ATTRIBUTES.size)
    if system(get_attributes, 0, found, _ATTRIBUTES.size, 0) != 0:
        return False
    values = [*_ATTRIBUTES.unpack(found.raw)]
    values[_RUNTIME] = 0 if seconds is None else round(seconds * 1e9)
    return bool(system(set_attributes, 0, ctypes.create_string_buffer(_ATTRIBUTES.pack(*values)), 0) == 0)


def turn() -> float | None:
    """Seconds; None where the system does not say."""
    calls = _CALLS.get(platform.machine())
    if calls is None or not sys.platform.startswith("linux"):
        return None
    found = ctypes.create_string_buffer(_ATTRIBUTES.size)
    if ctypes.CDLL(None).syscall(calls[1], 0, found, _ATTRIBUTES.size, 0) != 0:
        return None
    nanoseconds: int = _ATTRIBUTES.unpack(found.raw)[_RUNTIME]
    return nanoseconds / 1e9
