"""How much of the machine's memory this process may take.

A container is a group of processes with a limit of its own. Who takes more than that is ended by the system, however
much the machine has.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class _Controller(NamedTuple):
    """Where a version of Linux's control groups tells of memory."""

    folder: str
    limit: str
    used: str
    droppable: str  # in memory.stat: pages of files, which count as used and go when others need the memory


_VERSION_1 = _Controller(
    "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
)
_VERSION_2 = _Controller("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file")


def memory_limit(root: Path = Path("/")) -> int:
    """Bytes that this process can have at most: all of the machine, or what its groups may have.

    root: the folder that has proc and sys.
    """
    present = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([present, *(limit for limit, _ in _groups(root))])


def memory_left(root: Path = Path("/")) -> int:
    """Bytes that this process can take now before the system has to end one."""
    left = [limit - used for limit, used in _groups(root)]
    try:
        left.append(_value_of(root / "proc/meminfo", "MemAvailable:") * 1024)
    except (OSError, ValueError):
        left.append(memory_limit(root))
    return min(left)


def _groups(root: Path) -> Iterator[tuple[int, int]]:
    """Limit and used bytes of each control group with a limit that this process is in."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        controller = _VERSION_1 if controllers else _VERSION_2
        top = root / controller.folder
        own = top / path.lstrip("/")  # in a container it may not be there: then the top is the container's
        for folder in (own, *own.parents):
            if not folder.is_relative_to(top):
                break
            try:
                limit = int((folder / controller.limit).read_text())
                used = int((folder / controller.used).read_text())
                yield limit, used - _value_of(folder / "memory.stat", controller.droppable)
            except (OSError, ValueError):  # no such group, or "max"
                continue


def _value_of(path: Path, name: str) -> int:
    """The number behind a name at the start of a line. Raises ValueError if there is none."""
    for line in path.read_text().splitlines():
        first, _, rest = line.partition(" ")
        if first == name:
            return int(rest.split()[0])
    raise ValueError(f"{path} has no {name}")
