"""Where the time of one prompt goes, beside what the processor could do at most.

    python -m benchmarks.prefill_roofline [--tokens N ...] [--linear-math float32] [--dtype float32] [--keep]

For each part of a prefill: its operations, its time, and its rate as a share of multiply-adds in registers
(fma_peak.cc), measured before and after the prompts. Of several prompts of a length the fastest counts, as a whole:
other programs can only take time away. Parts without operations of their own (norms, copies) show their time alone.
--keep writes benchmarks/results/DATE-roofline-cpu.json, from which docs/performance.md is filled.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from benchmarks.engine import prefill_parts
from benchmarks.figures import machine
from benchmarks.machine import fma_rate
from benchmarks.page_parts import RESULTS
from cudaprefill.config import EngineConfig
from cudaprefill.engine.factory import EngineParts, build_engine
from cudaprefill.models import default_model_path, read_model_config
from cudaprefill.models.config import ModelConfig
from cudaprefill.observe.step_profiler import FORWARD, ProfiledStep, StepProfiler
from cudaprefill.sampling_params import SamplingParams


@dataclass(frozen=True)
class Part:
    """Operations and seconds of one prompt."""

    name: str
    operations: float
    seconds: float

    @property
    def counts(self) -> bool:
        """Whether its operations are what it takes its time for."""
        return self.operations > 1e9


@dataclass(frozen=True)
class Prompt:
    """The fastest of its length."""

    tokens: int
    parts: list[Part]

    @property
    def whole(self) -> Part:
        return Part("in all", sum(part.operations for part in self.parts), sum(part.seconds for part in self.parts))


@dataclass(frozen=True)
class Roofline:
    """What was measured, of what, and the peak before and after it in operations a second."""

    date: str
    machine: dict[str, Any]
    settings: str  # of the engine, for a reader
    peaks: list[float]
    prompts: list[Prompt]

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> Roofline:
        content = json.loads(path.read_text())
        prompts = [
            Prompt(prompt["tokens"], [Part(**part) for part in prompt["parts"]]) for prompt in content.pop("prompts")
        ]
        return cls(**content, prompts=prompts)


def measure(parts: EngineParts, tokens: int, number: int) -> list[ProfiledStep]:
    """One prompt of random tokens, step by step."""
    prompt = [random.randrange(10, parts.input_processor.vocab_size) for _ in range(tokens)]
    params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
    parts.engine.submit(parts.input_processor.process_prompt(str(number), prompt, params)[0])
    with StepProfiler(parts.engine) as profiler:
        while parts.engine.has_work():
            parts.engine.step()
    return profiler.steps


def fastest(parts: EngineParts, tokens: int, repeats: int) -> list[ProfiledStep]:
    measure(parts, tokens, -1)
    runs = [measure(parts, tokens, number) for number in range(repeats)]
    return min(runs, key=lambda steps: sum(step.seconds for step in steps))


def parts_of(steps: list[ProfiledStep], config: ModelConfig, tokens: int) -> list[Part]:
    """In the order of their time; what has neither operations nor a hundredth of the time is one part."""
    operations = prefill_parts(config, tokens)
    seconds: dict[str, float] = {}
    for step in steps:
        for name, taken in step.parts.items():
            short = name.removeprefix(f"{FORWARD}: ")
            seconds[short] = seconds.get(short, 0.0) + taken
    whole = sum(seconds.values())
    shown = [name for name in seconds if operations.get(name, 0.0) > 1e9 or seconds[name] > whole / 100]
    found = [Part(name, operations.get(name, 0.0), seconds[name]) for name in shown]
    rest = [name for name in {**operations, **seconds} if name not in shown]
    others = Part("all else", sum(operations.get(n, 0.0) for n in rest), sum(seconds.get(n, 0.0) for n in rest))
    return [*sorted(found, key=lambda part: -part.seconds), others]


def markdown(found: Roofline) -> str:
    """A line for each part, with columns for each length."""
    peak = statistics.mean(found.peaks)
    columns = [
        column
        for prompt in found.prompts
        for column in (f"{prompt.tokens:,} tokens: GFLOP", "ms", "GFLOP/s", "of the peak")
    ]
    lines = [f"| part | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    by_name = [{part.name: part for part in (*prompt.parts, prompt.whole)} for prompt in found.prompts]
    names = dict.fromkeys(name for parts in by_name for name in parts if name not in ("all else", "in all"))
    for name in (*names, "all else", "in all"):
        cells = [cell for parts in by_name for cell in _cells(parts.get(name), peak)]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    rates = [cell for prompt in found.prompts for cell in ("", f"{prompt.tokens / prompt.whole.seconds:,.0f}", "", "")]
    lines.append(f"| tokens a second | {' | '.join(rates)} |")
    return "\n".join(
        [
            f"{found.date}, {found.machine['cpu']}, {found.settings}. The peak was {min(found.peaks) / 1e9:,.0f} to "
            f"{max(found.peaks) / 1e9:,.0f} GFLOP/s.",
            "",
            *lines,
        ]
    )


def _cells(part: Part | None, peak: float) -> tuple[str, str, str, str]:
    if part is None:
        return "", "", "", ""
    time = f"{part.seconds * 1e3:,.0f}"
    if not part.counts:
        return "", time, "", ""
    rate = part.operations / part.seconds
    return f"{part.operations / 1e9:,.0f}", time, f"{rate / 1e9:,.0f}", f"{rate / peak:.0%}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1600, 3200], metavar="N", help="(default: 1600 3200)")
    parser.add_argument("--repeats", type=int, default=7, help="prompts of each length (default: %(default)s)")
    parser.add_argument("--linear-math", default="float32", help="(default: %(default)s)")
    parser.add_argument("--dtype", default="auto", help="of the weights (default: as stored)")
    parser.add_argument("--keep", action="store_true", help="write what was found into --results")
    parser.add_argument("--results", type=Path, default=RESULTS, help="(default: benchmarks/results)")
    flags = parser.parse_args()
    math = "auto" if flags.dtype == "float32" else flags.linear_math
    this_machine = machine()
    engine = build_engine(EngineConfig(dtype=flags.dtype, linear_math=math))
    engine.engine.model_runner.kv_cache.populate()  # as a server does
    config, info = read_model_config(default_model_path()), engine.info
    peaks, prompts = [fma_rate(info.threads)], []
    for tokens in flags.tokens:
        steps = fastest(engine, tokens, flags.repeats)
        prompts.append(Prompt(tokens, parts_of(steps, config, tokens)))
        peaks.append(fma_rate(info.threads))
    settings = (
        f"{info.dtype} weights, products in {info.linear_math}, {info.threads} threads, chunks of "
        f"{info.max_num_batched_tokens}, the fastest of {flags.repeats} prompts, with clocks around the ops"
    )
    found = Roofline(datetime.now(timezone.utc).date().isoformat(), this_machine, settings, peaks, prompts)
    print(markdown(found))
    if flags.keep:
        found.write(flags.results / f"{found.date}-roofline-cpu.json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
