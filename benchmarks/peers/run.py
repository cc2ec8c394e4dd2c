"""Engines that are up at once and measured in turns, so that each sample of one has a neighbour of every other."""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx

from benchmarks.machine import gemm_rate, read_bandwidth
from benchmarks.peers.client import Client
from benchmarks.peers.engines import Engine, RunningEngine
from benchmarks.peers.result import EngineResult, Result
from benchmarks.peers.workloads import Samples, Sizes, Workload, fresh_tokens, prefill, workloads

READ_BYTES = 512 * 2**20  # more than any cache
# Engines that run one request at a time take longer than all others together. They are measured in one of so many
# rounds, and there once.
ROUNDS_OF_THE_SLOW = 3


def say(text: str) -> None:
    print(f"peers: {text}", file=sys.stderr, flush=True)


def measure(chosen: Sequence[Engine], sizes: Sizes, found: Result, rounds: int, names: set[str], logs: Path) -> None:
    """Fills `found` with what the engines do in turns, in the workloads of these names.

    Raises ValueError if all of them fail.
    """
    run = Run(sizes, found, names, logs)
    try:
        for engine in chosen:
            run.start(engine)
        for number in range(rounds):
            say(f"round {number + 1} of {rounds}")
            run.round(number)
        run.finish()
    finally:
        run.stop()


class Run:
    """What is running and what is found of it. An engine that fails is left out from there on, with the reason."""

    def __init__(self, sizes: Sizes, found: Result, names: set[str], logs: Path) -> None:
        self._sizes = sizes
        self._found = found
        self._names = names
        self._logs = logs
        self._running: list[tuple[RunningEngine, EngineResult]] = []
        self._seed = random.SystemRandom().randrange(2**32)

    def start(self, engine: Engine) -> None:
        """Until it has settled and is frozen."""
        say(f"starting {engine.title}")
        each = RunningEngine(engine, self._logs / f"{engine.name}.log")
        result = EngineResult(
            engine.name, engine.title, engine.version, engine.shown_command, engine.note, start_seconds=0.0
        )
        self._running.append((each, result))
        with self._left_out_if_it_fails(each, result):
            each.wait_until_ready()
            result.start_seconds = each.start_seconds
            asyncio.run(self._warm_up(each))
            if not each.settle():
                say(f"{engine.title} goes on working without requests")
            each.freeze()

    def round(self, number: int) -> None:
        """Every workload as often as it has turns, each by all engines one after the other."""
        self._found.limits.gemm_GFLOP_s.append(gemm_rate() / 1e9)
        self._found.limits.read_GB_s.append(read_bandwidth(READ_BYTES) / 1e9)
        for _, result in self._running:
            result.rounds.append({})
        for place, workload in enumerate(self._workloads(self._sizes)):
            start = time.perf_counter()
            for turn in range(workload.turns):
                for each, result in list(self._running):
                    if has_turn(each.engine, workload, number, turn):
                        self._turn(each, result, workload, f"{self._seed} {number} {place} {turn}")
            say(f"  {workload.title} {time.perf_counter() - start:.1f} s")

    def finish(self) -> None:
        """Raises ValueError if no engine is left."""
        if not self._running:
            raise ValueError("no engine came through the run")
        for each, result in self._running:
            result.memory_bytes = each.memory()
            self._found.engines.append(result)

    def stop(self) -> None:
        for each, _ in self._running:
            each.stop()

    def _workloads(self, sizes: Sizes) -> list[Workload]:
        return [workload for workload in workloads(sizes) if workload.name in self._names]

    async def _warm_up(self, each: RunningEngine) -> None:
        """Has it do what an engine does only once, first kernels and the like: small workloads, and a long prompt."""
        small, draws = Sizes.tiny(self._sizes.vocab_size), random.Random()
        async with Client(each.url) as client:
            for workload in self._workloads(small):
                if has_turn(each.engine, workload, 0, 0):
                    await workload.run(client, small, draws)
            await prefill(client, self._sizes, draws, length=max(self._sizes.prefill))

    def _turn(self, each: RunningEngine, result: EngineResult, workload: Workload, seed: str) -> None:
        with self._left_out_if_it_fails(each, result):
            each.thaw()
            for name, values in asyncio.run(one_turn(each, workload, self._sizes, seed)).items():
                result.rounds[-1].setdefault(name, []).extend(values)
            each.freeze()

    @contextlib.contextmanager
    def _left_out_if_it_fails(self, each: RunningEngine, result: EngineResult) -> Iterator[None]:
        try:
            yield
        except (RuntimeError, httpx.HTTPError) as error:
            reason = (str(error) or repr(error)).splitlines()[0]
            say(f"{each.engine.title} failed: {reason}")
            self._found.absent[each.engine.title] = f"it failed: {reason}"
            self._running.remove((each, result))
            each.stop()


def has_turn(engine: Engine, workload: Workload, number: int, turn: int) -> bool:
    """Whether an engine takes part in a turn of a workload, in the round of this number."""
    return engine.concurrent or not (workload.concurrent or turn or number % ROUNDS_OF_THE_SLOW)


async def one_turn(running: RunningEngine, workload: Workload, sizes: Sizes, seed: str) -> Samples:
    """A workload once, after a short request that nobody measures: the first one after a thaw finds all caches cold.

    The same seed gives the same token ids.
    """
    draws = random.Random(seed)
    async with Client(running.url) as client:
        await client.complete(fresh_tokens(sizes.decode_prompt, sizes, draws), 2)
        return await workload.run(client, sizes, draws)
