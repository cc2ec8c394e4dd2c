"""What the terminal UI costs the engine: the mean ITL with `cudaprefill top` attached, and without, in turns.

    PYTHONPATH=python:tui:. python benchmarks/tui_attached.py [--streams 4] [--seconds 20] [--rounds 5] [--url URL]
                                                              [--parts]

--parts also measures clients that only read the telemetry, and that decode it: what the server's and the client's part
of the cost is. Without --url it starts a server of its own. The streams decode all the time; ITL is the server's own,
from /metrics. The UI runs on a pseudo-terminal of 120 x 40 that reads all it is sent. On one machine it takes its share
of the cores from the engine: over a network it does not. To be run while nothing else does.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import fcntl
import os
import pty
import re
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import time
import urllib.request
from collections.abc import AsyncIterator

from cudaprefill.client import AsyncClient
from cudaprefill_tui.server_process import ServerProcess

SETTLE = 4.0  # seconds
MAX_TOKENS = 400
SUMS = re.compile(r"^vllm:inter_token_latency_seconds_(sum|count)\{[^}]*\} (\S+)$", re.MULTILINE)
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


CLIENTS = {
    "reads": ["benchmarks.telemetry_reader", "{url}"],
    "decodes": ["benchmarks.telemetry_reader", "{url}", "--decode"],
    "ui": ["cudaprefill.cli.main", "top", "--url", "{url}"],
}


class AttachedClient:
    """One of CLIENTS in a terminal; `written` counts what that terminal was sent."""

    def __init__(self, name: str, url: str, scratch: str) -> None:
        self.written = 0
        self._name = name
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor", "XDG_CONFIG_HOME": scratch}
        command = [sys.executable, "-m", *(word.format(url=url) for word in CLIENTS[name])]
        self._process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment)
        os.close(slave)
        os.set_blocking(self._master, False)
        asyncio.get_running_loop().add_reader(self._master, self._read)

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            self.written += len(os.read(self._master, 1 << 16))

    @property
    def cpu(self) -> float:
        """Seconds of processor time so far."""
        with open(f"/proc/{self._process.pid}/stat", encoding="ascii") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS

    async def settle(self) -> None:
        """Until it has begun, and then as long as it takes to get into its stride."""
        while self._name == "ui" and not self.written:
            await asyncio.sleep(0.1)
        await asyncio.sleep(SETTLE)

    async def close(self) -> None:
        self._process.terminate()
        while self._process.poll() is None:
            await asyncio.sleep(0.05)
        asyncio.get_running_loop().remove_reader(self._master)
        os.close(self._master)


def itl_totals(url: str) -> tuple[float, float]:
    """Sum in seconds, and count, since the server's start."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as answer:
        found = dict(SUMS.findall(answer.read().decode()))
    return float(found["sum"]), float(found["count"])


async def stream(client: AsyncClient, number: int) -> None:
    while True:
        prompt = f"Story {number}: count slowly from one to two hundred, in words, and never stop early."
        async with client.respond(prompt, max_output_tokens=MAX_TOKENS, temperature=1.0, store=False) as response:
            async for _ in response:
                pass


@contextlib.asynccontextmanager
async def streams(url: str, count: int) -> AsyncIterator[None]:
    client = AsyncClient(url)
    tasks = [asyncio.create_task(stream(client, number)) for number in range(count)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await client.close()


async def mean_itl(url: str, seconds: float) -> float:
    begin = await asyncio.to_thread(itl_totals, url)
    await asyncio.sleep(seconds)
    end = await asyncio.to_thread(itl_totals, url)
    return (end[0] - begin[0]) / (end[1] - begin[1])


async def with_client(name: str, url: str, seconds: float) -> tuple[float, str]:
    """Mean ITL in seconds, and what the client took."""
    with tempfile.TemporaryDirectory() as scratch:
        client = AttachedClient(name, url, scratch)
        await client.settle()
        cpu, written, began = client.cpu, client.written, time.perf_counter()
        itl = await mean_itl(url, seconds)
        wall = time.perf_counter() - began
        share, rate = (client.cpu - cpu) / wall, (client.written - written) / wall
        await client.close()
    return itl, f"{share:.1%} of a core, {rate / 1e3:.1f} KB/s to its terminal"


async def measure(url: str, arguments: argparse.Namespace) -> None:
    clients = list(CLIENTS) if arguments.parts else ["ui"]
    ratios: dict[str, list[float]] = {name: [] for name in clients}
    async with streams(url, arguments.streams):
        await asyncio.sleep(SETTLE)
        for turn in range(arguments.rounds):
            itls: dict[str, float] = {}
            order = ["none", *clients]
            for name in order if turn % 2 == 0 else reversed(order):
                took = ""
                if name == "none":
                    itls[name] = await mean_itl(url, arguments.seconds)
                else:
                    itls[name], took = await with_client(name, url, arguments.seconds)
                print(f"round {turn + 1}, {name}: mean ITL {itls[name] * 1e3:.2f} ms{'; ' if took else ''}{took}")
            for name in clients:
                ratios[name].append(itls[name] / itls["none"] - 1)
    for name, found in ratios.items():
        print(
            f"{arguments.streams} streams, {name}: {statistics.median(found):+.1%}"
            f" ({min(found):+.1%} to {max(found):+.1%}) in {arguments.rounds} rounds"
        )


async def main(arguments: argparse.Namespace) -> None:
    if arguments.url:
        await measure(arguments.url.rstrip("/"), arguments)
        return
    server = ServerProcess([])
    try:
        await measure(await server.start(lambda line, share: None), arguments)
    finally:
        await server.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--url", default="", help="a running server")
    parser.add_argument("--parts", action="store_true", help="also clients that only read, and that decode")
    asyncio.run(main(parser.parse_args()))
