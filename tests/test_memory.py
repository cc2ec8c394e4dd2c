"""How much memory a process may take, from folders that look like a system's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cudaprefill.memory import memory_left, memory_limit

MIB = 2**20
PRESENT = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
VERSIONS = [1, 2]


def write(path: Path, text: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def meminfo(root: Path, available: int) -> None:
    write(root / "proc/meminfo", f"MemTotal: 999 kB\nMemFree: 5 kB\nMemAvailable: {available // 1024} kB")


def process_in(root: Path, version: int, path: str) -> None:
    write(root / "proc/self/cgroup", f"9:name=systemd:/\n8:cpu,memory:{path}\n0::/" if version == 1 else f"0::{path}")


def group(root: Path, version: int, path: str, limit: object, used: int = 0, droppable: int = 0) -> None:
    top = root / ("sys/fs/cgroup/memory" if version == 1 else "sys/fs/cgroup")
    names = ("memory.limit_in_bytes", "memory.usage_in_bytes") if version == 1 else ("memory.max", "memory.current")
    for name, value in zip(names, (limit, used), strict=True):
        write(top / path / name, value)
    own, whole = (3, droppable) if version == 1 else (droppable, 3)  # version 1 tells the group's alone, too
    write(top / path / "memory.stat", f"anon 7\ninactive_file {own}\ntotal_inactive_file {whole}")


def test_without_groups_it_is_the_machine_and_what_the_kernel_calls_available(tmp_path: Path) -> None:
    meminfo(tmp_path, 300 * MIB)
    assert memory_limit(tmp_path) == PRESENT
    assert memory_left(tmp_path) == 300 * MIB


def test_a_system_that_tells_nothing_has_what_is_present(tmp_path: Path) -> None:
    assert memory_limit(tmp_path) == memory_left(tmp_path) == PRESENT


@pytest.mark.parametrize("version", VERSIONS)
def test_the_least_limit_of_all_groups_around_the_process_counts(version: int, tmp_path: Path) -> None:
    meminfo(tmp_path, 900 * MIB)
    process_in(tmp_path, version, "/outer/inner/own")
    group(tmp_path, version, "outer", 500 * MIB, used=450 * MIB, droppable=20 * MIB)
    group(tmp_path, version, "outer/inner", 2**63 - 4096 if version == 1 else "max", used=60 * MIB)
    group(tmp_path, version, "outer/inner/own", 400 * MIB, used=60 * MIB, droppable=10 * MIB)
    group(tmp_path, version, "beside", 1 * MIB)
    assert memory_limit(tmp_path) == 400 * MIB
    assert memory_left(tmp_path) == 70 * MIB  # of the outer group


@pytest.mark.parametrize("version", VERSIONS)
def test_inside_a_container_whose_path_is_that_of_the_host(version: int, tmp_path: Path) -> None:
    meminfo(tmp_path, 10 * MIB)
    process_in(tmp_path, version, "/system.slice/container")
    group(tmp_path, version, "", 400 * MIB, used=100 * MIB)
    assert memory_limit(tmp_path) == 400 * MIB
    assert memory_left(tmp_path) == 10 * MIB


def test_this_machine_has_memory_left() -> None:
    assert 0 < memory_left() <= memory_limit() <= PRESENT
