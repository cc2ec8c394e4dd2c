"""What the panes of the terminal UI cost: CPU time an update, the share of a core, and what goes to the terminal.

    PYTHONPATH=python:tui:. python benchmarks/tui_panes.py [--streams 32] [--blocks 4096] [--seconds 10] [--size 120x40]

A pretended engine tells of `streams` requests that decode while prompts come in chunks; a step is one update. What goes
to the terminal is made as for a real one, counted, and thrown away.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Sequence

os.environ.setdefault("TEXTUAL_COLOR_SYSTEM", "truecolor")  # as in a terminal: what is piped has none

from textual.app import ComposeResult
from textual.drivers.headless_driver import HeadlessDriver

from cudaprefill.client.engine_view import EngineView
from cudaprefill.protocol.telemetry import TelemetrySnapshot, TelemetryUpdate
from cudaprefill_tui.sparse_output import SparseApp
from cudaprefill_tui.themes import DARK
from cudaprefill_tui.widgets.blocks_pane import BlocksPane
from cudaprefill_tui.widgets.latency_pane import LatencyPane
from cudaprefill_tui.widgets.pane import Pane
from cudaprefill_tui.widgets.requests_pane import RequestsPane
from cudaprefill_tui.widgets.splitter import Split
from cudaprefill_tui.widgets.steps_pane import StepsPane
from tests.tui.synthetic import SyntheticEngine

UPDATES_PER_SECOND = 20


def telemetry(streams: int, blocks: int, updates: int) -> tuple[TelemetrySnapshot, list[TelemetryUpdate]]:
    """Made beforehand, so that only the view and the panes are measured."""
    engine = SyntheticEngine(num_blocks=blocks, budget=streams + 128, cap=64, max_num_seqs=streams + 4)
    for _ in range(streams):
        engine.submit(40, 100_000, document=0)
    while any(request.record.state != "decoding" for request in engine.requests.values()):
        engine.step()
    snapshot = engine.snapshot()
    told = []
    for turn in range(updates):
        if turn % 15 == 0:
            engine.submit(400, 5, document=1 + turn % 4)
        engine.step()
        told.append(engine.update())
    return snapshot, told


class CountingDriver(HeadlessDriver):
    """A terminal that only counts what it is sent."""

    written = 0

    @property
    def is_headless(self) -> bool:
        return False  # else the application composes no output

    def write(self, data: str) -> None:
        CountingDriver.written += len(data.encode())


class Panes(SparseApp[None]):
    """The four panes that live from telemetry, as the desktop has them, or the block map alone."""

    def __init__(self, told: tuple[TelemetrySnapshot, Sequence[TelemetryUpdate]], only_blocks: bool) -> None:
        super().__init__()
        self.driver_class = CountingDriver
        self._snapshot, self._updates = told
        self._only_blocks = only_blocks

    def compose(self) -> ComposeResult:
        if self._only_blocks:
            yield BlocksPane()
            return
        yield Split(
            Split(StepsPane(), LatencyPane(), direction="vertical"),
            Split(BlocksPane(), RequestsPane(), direction="vertical"),
        )

    def on_mount(self) -> None:
        self.register_theme(DARK)
        self.theme = DARK.name
        self.call_after_refresh(self.run_worker, self._measure)

    async def _measure(self) -> None:
        view = EngineView()
        view.apply(self._snapshot)
        panes = list(self.query(Pane))
        for pane in panes:
            pane.update_view(view)
        await asyncio.sleep(0.5)
        busy, applying = Meter(), 0.0
        for turn, update in enumerate(self._updates):
            before = time.process_time()
            view.apply(update)
            applying += time.process_time() - before
            for pane in panes:
                pane.update_view(view)
            await asyncio.sleep(max(0.0, (turn + 1) / UPDATES_PER_SECOND - busy.wall))
        count, wall, cpu, written = len(self._updates), busy.wall, busy.cpu, busy.written
        await asyncio.sleep(1.0)
        idle = Meter()
        await asyncio.sleep(3.0)
        print(
            f"{'block map alone' if self._only_blocks else 'all panes'}, {len(view.blocks)} blocks,"
            f" {self.size.width}x{self.size.height}, {count / wall:.1f} updates/s: {cpu / count * 1e3:.2f} ms an update"
            f" (applying it {applying / count * 1e3:.2f} ms), {cpu / wall:.1%} of a core,"
            f" {written / wall / 1e3:.0f} KB/s to the terminal; idle {idle.cpu / idle.wall:.2%} of a core",
            file=sys.__stdout__,
        )
        self.exit()


class Meter:
    """What was used since it was made."""

    def __init__(self) -> None:
        self._wall, self._cpu, self._written = time.perf_counter(), time.process_time(), CountingDriver.written

    @property
    def wall(self) -> float:
        return time.perf_counter() - self._wall

    @property
    def cpu(self) -> float:
        return time.process_time() - self._cpu

    @property
    def written(self) -> int:
        return CountingDriver.written - self._written


def apply_many(streams: int, steps: int) -> None:
    """One update of many steps."""
    snapshot, told = telemetry(streams, 4096, steps)
    update = told[0]
    update.steps = [step for each in told for step in each.steps or ()]
    update.requests = [change for each in told for change in each.requests or ()]
    times = []
    for _ in range(5):
        view = EngineView()
        view.apply(snapshot)
        before = time.process_time()
        view.apply(update)
        times.append(time.process_time() - before)
    print(f"one update of {steps} steps x {streams} decodes: {min(times) * 1e3:.2f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--blocks", type=int, default=4096)
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--size", default="120x40")
    arguments = parser.parse_args()
    columns, rows = map(int, arguments.size.split("x"))
    updates = arguments.seconds * UPDATES_PER_SECOND
    apply_many(arguments.streams, 100)
    size = (columns, rows)
    asyncio.run(Panes(telemetry(arguments.streams, arguments.blocks, updates), False).run_async(size=size))
    asyncio.run(Panes(telemetry(arguments.streams, 100_000, updates), True).run_async(size=size))


if __name__ == "__main__":
    main()
