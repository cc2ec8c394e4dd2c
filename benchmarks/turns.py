"""What short turns are worth to a thread that waits for a socket while all cores compute.

    python -m benchmarks.turns [--seconds 20] [--keep]

As many processes as there are cores compute without a pause, as kernels do. Beside them readers wait for a byte that
comes every few milliseconds, half of them with short turns and half with usual ones, side by side. Told is by how much
each read returned after the system had its byte.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import socket
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from benchmarks.explain import Reader
from benchmarks.tuning.result import Result
from cudaprefill.thread_turns import SHORT, set_turn

READERS = 2  # of each kind
PAUSE = 0.004  # seconds between two bytes, on average


def compute() -> None:
    while True:
        sum(range(100_000))


def read(port: int, turn: float | None, result: Connection) -> None:
    set_turn(turn)
    reader, late = Reader(port), []
    while reader.read():
        late.append(reader.late)
    result.send(late)


def measure(seconds: float) -> dict[str, list[float]]:
    """By kind of turn: seconds by which reads were late."""
    listener = socket.create_server(("127.0.0.1", 0))
    port, draws = listener.getsockname()[1], random.Random(0)
    busy = [multiprocessing.Process(target=compute, daemon=True) for _ in os.sched_getaffinity(0)]
    late: dict[str, list[float]] = {"short": [], "usual": []}
    results, connections = [], []
    for kind in [*late] * READERS:
        receiving, sending = multiprocessing.Pipe(duplex=False)
        turn = SHORT if kind == "short" else None
        multiprocessing.Process(target=read, args=(port, turn, sending), daemon=True).start()
        results.append((kind, receiving))
        connections.append(listener.accept()[0])
    for process in busy:
        process.start()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        draws.choice(connections).sendall(b"x")
        time.sleep(draws.expovariate(1 / PAUSE))
    for connection in connections:
        connection.shutdown(socket.SHUT_WR)
    for kind, receiving in results:
        late[kind] += receiving.recv()
    for process in busy:
        process.terminate()
    return late


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--keep", action="store_true", help="write them into the results and into docs/tuning.md")
    flags = parser.parse_args()
    result = Result.begin("benchmarks.turns")
    figures = {}
    for kind, late in measure(flags.seconds).items():
        p50, p90, p99 = (float(value) * 1e3 for value in np.quantile(late, (0.5, 0.9, 0.99)))
        figures[kind] = {"reads": len(late), "p50_ms": p50, "p90_ms": p90, "p99_ms": p99, "max_ms": max(late) * 1e3}
        print(f"{kind} turns: {len(late)} reads, late by {p50:.3f} ms (p50), {p90:.3f} (p90), {p99:.3f} (p99)")
    result.end({"turns": figures}, flags.json, "turns" if flags.keep else None)
    return 0


if __name__ == "__main__":
    sys.exit(main())
