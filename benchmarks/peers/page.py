"""Fills docs/performance.md from the results that are kept, so that no figure on it is typed by hand.

    python -m benchmarks.peers.page [--check]

Each part of the page between `<!-- NAME -->` and `<!-- /NAME -->` is replaced by what the newest result says.
--check writes nothing and has exit status 1 where the page is not what the results say.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.page_parts import RESULTS, ROOT, PagePart, filled
from benchmarks.peers.result import EngineResult, Figure, Result, markdown
from benchmarks.prefill_roofline import Roofline
from benchmarks.prefill_roofline import markdown as roofline_table
from benchmarks.quality import Quality
from benchmarks.quality import table as quality_table

PAGE = ROOT / "docs" / "performance.md"


@dataclass(frozen=True)
class Goal:
    """A ratio to vLLM's figure that one of these engines of ours must reach: at least `ratio` where more is better."""

    figure: str  # title
    engines: tuple[str, ...]
    ratio: float


DEFAULT, INT8 = ("cudaprefill",), ("cudaprefill-int8",)
EXACT = ("cudaprefill-float32-math", "cudaprefill-float32")  # from the file's blocks, or from float32 weights
GOALS = (
    Goal("prefill, 1,600 tokens", EXACT, 1.15),
    Goal("prefill, 3,200 tokens", EXACT, 1.15),
    Goal("prefill, 1,600 tokens", INT8, 2.0),
    Goal("prefill, 3,200 tokens", INT8, 2.0),
    Goal("one stream, mean ITL", DEFAULT, 0.35),
    Goal("batch, wall time", DEFAULT, 0.5),
    Goal("chats + long prompt: ITL p99", DEFAULT, 0.1),
    Goal("chats + long prompt: long TTFT", DEFAULT, 1.2),
    Goal("prefix, TTFT of a hit", DEFAULT, 0.3),
)


def goals(result: Result) -> str:
    """A line a goal that this run can tell of; nothing where vLLM was not measured."""
    if result.baseline.name != "vllm":
        return "vLLM was not measured in this run, so it says nothing about the goals."
    figures: dict[str, Figure] = {figure.title: figure for figure in result.figures}
    engines: dict[str, EngineResult] = {engine.name: engine for engine in result.engines}
    lines = ["| goal, as a ratio to vLLM's | engine | at | reached | pairs | |", "|---|---|---|---|---|---|"]
    for goal in GOALS:
        figure = figures.get(goal.figure)
        if figure is None:
            continue
        measured = [engines[name] for name in goal.engines if name in engines]
        ratios = [(ratio, each) for each in measured if (ratio := result.ratio(each, figure)) is not None]
        if not ratios:
            continue
        best = max if figure.more_is_better else min
        ratio, engine = best(ratios, key=lambda pair: pair[0].median)
        met = ratio.median >= goal.ratio if figure.more_is_better else ratio.median <= goal.ratio
        bound = f"{'least' if figure.more_is_better else 'most'} {goal.ratio:g}x"
        cells = (figure.title, engine.title, bound, str(ratio), str(len(ratio.samples)), "met" if met else "missed")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def peers_part(path: Path) -> str:
    result = Result.read(path)
    plot = f"![Times as fast as {result.baseline.title}](../benchmarks/results/{path.with_suffix('.svg').name})"
    return f"From `benchmarks/results/{path.name}`:\n\n{markdown(result)}\n{plot}\n\n{goals(result)}"


def quality_part(path: Path) -> str:
    content = json.loads(path.read_text())
    found = [Quality(**each) for each in content["formats"]]
    return f"From `benchmarks/results/{path.name}`: {content['model']} on {content['text']}.\n\n{quality_table(found)}"


def roofline_part(path: Path) -> str:
    return f"From `benchmarks/results/{path.name}`: {roofline_table(Roofline.read(path))}"


PARTS = (
    PagePart("peers", "*-peers-cpu.json", peers_part, "No result is kept yet: `make bench-peers` writes one."),
    PagePart(
        "roofline",
        "*-roofline-cpu.json",
        roofline_part,
        "No result is kept yet: `python -m benchmarks.prefill_roofline --keep`.",
    ),
    PagePart(
        "quality", "*-quality-cpu.json", quality_part, "No result is kept yet: `python -m benchmarks.quality --keep`."
    ),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    flags = parser.parse_args()
    before = PAGE.read_text()
    after = filled(before, PARTS, RESULTS)
    if flags.check:
        return int(before != after)
    PAGE.write_text(after)
    return 0


if __name__ == "__main__":
    sys.exit(main())
