"""Where the time of one prompt goes, beside what the processor could do at most.

    python -m benchmarks.prefill_roofline [--tokens N] [--linear-math float32] [--dtype float32] [--json FILE]

For each part of a prefill: its operations, its time, and its rate as a share of multiply-adds in registers
(fma_peak.cc), measured between the prompts. Of several prompts the fastest counts, as a whole: other programs can only
take time away. Parts without operations of their own (norms, copies) show their time alone.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.engine import prefill_parts
from benchmarks.figures import machine
from benchmarks.machine import fma_rate
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


def table(parts: list[Part], peak: float) -> str:
    """Markdown."""
    whole = Part("in all", sum(part.operations for part in parts), sum(part.seconds for part in parts))
    lines = ["| part | GFLOP | ms | of the time | GFLOP/s | of the peak |", "|---|---|---|---|---|---|"]
    for part in (*parts, whole):
        rate = part.operations / part.seconds
        counts = part.operations > 1e9
        cells = (
            part.name,
            f"{part.operations / 1e9:,.0f}" if counts else "",
            f"{part.seconds * 1e3:,.0f}",
            f"{part.seconds / whole.seconds:.1%}",
            f"{rate / 1e9:,.0f}" if counts else "",
            f"{rate / peak:.0%}" if counts else "",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=1600)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--linear-math", default="float32", help="(default: float32)")
    parser.add_argument("--dtype", default="auto", help="of the weights (default: as stored)")
    parser.add_argument("--json", type=Path, help="write what was found to this file")
    flags = parser.parse_args()
    math = "auto" if flags.dtype == "float32" else flags.linear_math
    engine = build_engine(EngineConfig(dtype=flags.dtype, linear_math=math))
    engine.engine.model_runner.kv_cache.populate()  # as a server does
    peaks = [fma_rate(engine.info.threads)]
    steps = fastest(engine, flags.tokens, flags.repeats)
    peaks.append(fma_rate(engine.info.threads))
    peak = statistics.mean(peaks)
    parts = parts_of(steps, read_model_config(default_model_path()), flags.tokens)
    seconds = sum(part.seconds for part in parts)
    print(
        f"{flags.tokens:,} tokens in {seconds:.3f} s, {flags.tokens / seconds:,.0f} tok/s, with clocks around the ops; "
        f"{engine.info.dtype} weights, {engine.info.linear_math}, {engine.info.threads} threads, peak "
        f"{min(peaks) / 1e9:,.0f} to {max(peaks) / 1e9:,.0f} GFLOP/s\n\n{table(parts, peak)}"
    )
    if flags.json:
        content = {"machine": machine(), "tokens": flags.tokens, "peaks": peaks, "parts": [asdict(p) for p in parts]}
        flags.json.write_text(json.dumps(content, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
