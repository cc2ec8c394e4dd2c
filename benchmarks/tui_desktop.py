"""What the whole desktop of the terminal UI costs: the share of a core under load and idle, and bytes to the terminal.

    PYTHONPATH=python:tui:. python benchmarks/tui_desktop.py [--streams 32] [--rate 20] [--seconds 20] [--size 120x40]

A pretended engine tells of `streams` requests that decode while prompts come in chunks; the chat has an answer that
gets a word a step. What goes to the terminal is made as for a real one, counted, and thrown away.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("TEXTUAL_COLOR_SYSTEM", "truecolor")  # as in a terminal: what is piped has none

from benchmarks.tui_panes import CountingDriver, Meter, telemetry
from cudaprefill.protocol.telemetry import TelemetrySnapshot, TelemetryUpdate
from cudaprefill_tui.app import CudaprefillApp, Setup
from cudaprefill_tui.backend import Message
from cudaprefill_tui.conversations import ChatSettings
from cudaprefill_tui.engine_link import AnswerEnded, AnswerEvent, AnswerText
from cudaprefill_tui.run import spare_collector
from cudaprefill_tui.session import Session
from tests.tui.fake_link import COST, FakeLink

WORDS = ("the", "river", "runs", "to", "the", "sea", "and", "**nobody**", "asks", "it", "`why`", "so", "slowly\n")
SETTLE = 1.0  # seconds


class TellingLink(FakeLink):
    """Tells updates at a rate, and with each a word of the answer."""

    def __init__(self, told: tuple[TelemetrySnapshot, Sequence[TelemetryUpdate]], rate: float) -> None:
        super().__init__(script=self._words)
        self._told, self._rate = told, rate

    async def run(self) -> None:
        self.apply(self._told[0])

    def _words(self, messages: list[Message]) -> list[AnswerEvent | Exception]:
        texts = [AnswerText(f"{WORDS[place % len(WORDS)]} ") for place in range(len(self._told[1]))]
        return [*texts, AnswerEnded(COST)]

    async def tell(self) -> None:
        begin = time.perf_counter()
        for turn, update in enumerate(self._told[1]):
            self.apply(update)
            self.gate.set()
            await asyncio.sleep(0)
            self.gate.clear()
            await asyncio.sleep(max(0.0, (turn + 1) / self._rate - (time.perf_counter() - begin)))
        self.gate.set()


async def measure(arguments: argparse.Namespace) -> None:
    columns, rows = map(int, arguments.size.split("x"))
    told = telemetry(arguments.streams, arguments.blocks, arguments.seconds * arguments.rate)
    link = TellingLink(told, arguments.rate)
    link.gate.clear()
    with tempfile.TemporaryDirectory() as scratch:
        setup = Setup(Session([link], lambda url, key: FakeLink(url)), None, ChatSettings(), Path(scratch) / "x.json")
        app = CudaprefillApp(setup)
        app.driver_class = CountingDriver
        running = asyncio.create_task(app.run_async(size=(columns, rows)))
        await asyncio.sleep(SETTLE)
        spare_collector()
        await app.desktop.chat.current.ask("Tell me about rivers.")
        busy = Meter()
        await link.tell()
        load = (busy.cpu / busy.wall, busy.written / busy.wall)
        await asyncio.sleep(2 * SETTLE)
        idle = Meter()
        await asyncio.sleep(arguments.idle)
        print(
            f"{arguments.streams} streams, {arguments.rate} updates/s, {columns}x{rows}: {load[0]:.1%} of a core,"
            f" {load[1] / 1e3:.1f} KB/s to the terminal; idle {idle.cpu / idle.wall:.2%} of a core,"
            f" {idle.written / idle.wall:.0f} bytes/s",
            file=sys.__stdout__,
        )
        app.exit()
        await running


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--blocks", type=int, default=4096)
    parser.add_argument("--rate", type=int, default=20, help="updates a second")
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--idle", type=float, default=15.0, help="seconds without news")
    parser.add_argument("--size", default="120x40")
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
