"""For tests of damaged files: damage of any kind, and what reading them must not leave behind."""

from __future__ import annotations

import gc
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hypothesis import strategies as st


def damaged(data: st.DataObject, content: bytes, head: int) -> bytes:
    """`content` with some bytes changed, mostly in its first `head`, a piece cut out, or its end cut off or longer."""
    draw, damaged = data.draw, bytearray(content)
    place = st.integers(0, head - 1) | st.integers(0, head - 1) | st.integers(0, len(content) - 1)
    for _ in range(draw(st.integers(0, 4))):
        damaged[draw(place)] = draw(st.integers(0, 255))
    match draw(st.sampled_from(["whole", "whole", "cut off", "piece lost", "longer"])):
        case "cut off":
            del damaged[draw(place) :]
        case "piece lost":
            at = draw(place)
            del damaged[at : at + draw(st.integers(1, 64))]
        case "longer":
            damaged += draw(st.binary(min_size=1, max_size=64))
    return bytes(damaged)


@contextmanager
def at_most_more_memory(num_bytes: int) -> Iterator[None]:
    """While it lasts, whoever asks for much more memory than there is use for is refused it: MemoryError."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (in_use + num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def nothing_is_left_open(path: Path) -> None:
    """Neither a descriptor of this process nor, once garbage is collected, its memory has to do with the file."""
    own = Path("/proc/self/fd")
    opened = set()
    for number in os.listdir(own):
        try:
            opened.add(os.readlink(own / number))
        except FileNotFoundError:  # that of the listing itself
            continue
    assert str(path) not in opened
    if str(path) in Path("/proc/self/maps").read_text():
        gc.collect()
        assert str(path) not in Path("/proc/self/maps").read_text()
