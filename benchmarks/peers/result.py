"""What a run has found: raw samples of every engine, the figures made of them, a table and a picture."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from benchmarks.peers.limits import Limits
from benchmarks.peers.workloads import Samples


@dataclass(frozen=True)
class Figure:
    """One number of an engine: a statistic of its samples."""

    title: str
    samples: str  # the key of a workload's samples
    unit: str
    statistic: Callable[[Sequence[float]], float] = statistics.median
    more_is_better: bool = False

    def ratios(self, own: Sequence[float], base: Sequence[float]) -> list[float]:
        """Of one engine's samples of a round to another's: of each to its neighbour in time where a sample is a turn.

        Where a turn has many samples, and the figure is a quantile of them, of one quantile to the other.
        """
        if self.statistic is not statistics.median:
            own, base = [self.statistic(own)], [self.statistic(base)]
        return [one / other for one, other in zip(own, base, strict=False) if other]


def quantile(share: float) -> Callable[[Sequence[float]], float]:
    """The least sample that at least `share` of all do not exceed."""
    return lambda samples: sorted(samples)[max(0, math.ceil(share * len(samples)) - 1)]


def figures_of(samples: Samples) -> list[Figure]:
    """The figures that these samples give, in the order of the table."""
    lengths = sorted(int(name.split("_")[1]) for name in samples if name.startswith("prefill_"))
    all_figures = [
        *(
            Figure(f"prefill, {length:,} tokens", f"prefill_{length}_tokens_s", "tok/s", more_is_better=True)
            for length in lengths
        ),
        Figure("one stream, mean ITL", "decode_itl_ms", "ms"),
        Figure("batch, wall time", "batch_wall_s", "s"),
        Figure("chats + long prompt: ITL p50", "chats_itl_ms", "ms", quantile(0.50)),
        Figure("chats + long prompt: ITL p99", "chats_itl_ms", "ms", quantile(0.99)),
        Figure("chats + long prompt: ITL max", "chats_itl_ms", "ms", max),
        Figure("chats + long prompt: long TTFT", "chats_long_ttft_s", "s"),
        Figure("prefix, TTFT cold", "prefix_cold_s", "s"),
        Figure("prefix, TTFT of a hit", "prefix_hit_s", "s"),
    ]
    return [figure for figure in all_figures if samples.get(figure.samples)]


@dataclass(frozen=True)
class Ratio:
    """How one engine's figure compares with the baseline's, from `samples` of neighbours in time."""

    samples: Sequence[float]

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def middle_half(self) -> tuple[float, float]:
        """What a quarter of the samples does not exceed, and what three quarters do not."""
        return quantile(0.25)(self.samples), quantile(0.75)(self.samples)

    def __str__(self) -> str:
        if len(self.samples) == 1:
            return f"{self.median:.2f}x"
        low, high = self.middle_half
        return f"{self.median:.2f}x, {low:.2f} to {high:.2f}"


@dataclass
class EngineResult:
    """One engine's part of a run.

    rounds: of each round its samples, in the order of the turns; nothing where the engine had none.
    """

    name: str
    title: str
    version: str
    command: str
    note: str
    start_seconds: float
    rounds: list[Samples] = field(default_factory=list)
    memory_bytes: int = 0  # after the last round

    @property
    def samples(self) -> Samples:
        """Of all rounds together."""
        pooled: Samples = {}
        for samples in self.rounds:
            for name, values in samples.items():
                pooled.setdefault(name, []).extend(values)
        return pooled

    def value(self, figure: Figure) -> float | None:
        samples = self.samples.get(figure.samples)
        return figure.statistic(samples) if samples else None


@dataclass
class Result:
    """A whole run, as it is kept."""

    date: str
    machine: dict[str, Any]
    model: dict[str, str]
    sizes: dict[str, Any]
    limits: Limits
    absent: dict[str, str]  # peers that were not measured, and why
    engines: list[EngineResult]

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> Result:
        content = json.loads(path.read_text())
        engines = [EngineResult(**engine) for engine in content.pop("engines")]
        return cls(**{**content, "limits": Limits(**content["limits"])}, engines=engines)

    @property
    def figures(self) -> list[Figure]:
        """Of all engines."""
        union: Samples = {}
        for engine in self.engines:
            union |= engine.samples
        return figures_of(union)

    @property
    def baseline(self) -> EngineResult:
        """vLLM where it was measured, else the first engine."""
        return next((engine for engine in self.engines if engine.name == "vllm"), self.engines[0])

    def ratio(self, engine: EngineResult, figure: Figure) -> Ratio | None:
        """An engine's figure over the baseline's; None where they have none of the same turn."""
        samples = [
            ratio
            for own, base in zip(engine.rounds, self.baseline.rounds, strict=False)
            if figure.samples in own and figure.samples in base
            for ratio in figure.ratios(own[figure.samples], base[figure.samples])
        ]
        return Ratio(samples) if samples else None


def markdown(result: Result) -> str:
    """The table, with what is needed to read it."""
    baseline, engines = result.baseline, result.engines
    rows = [
        f"| | {' | '.join(engine.title for engine in engines)} | pairs |",
        "|---" * (len(engines) + 2) + "|",
    ]
    for figure in result.figures:
        cells = [_cell(result, engine, figure) for engine in engines]
        rows.append(f"| {figure.title} ({figure.unit}) | {' | '.join(cells)} | {_pairs(result, figure)} |")
    starts = " | ".join(f"{engine.start_seconds:.1f}" for engine in engines)
    memory = " | ".join(number(engine.memory_bytes / 1e6) for engine in engines)
    machine = result.machine
    num_rounds = max(len(engine.rounds) for engine in engines)
    lines = [
        f"{result.date}, {machine['cpu']}, {machine['threads']} threads, {result.model['file']}, medians of "
        f"{num_rounds} rounds. In brackets: the ratio to {baseline.title}, the median of as many pairs of neighbours "
        "in time as the last column says, and what the middle half of them lies between.",
        "",
        *rows,
        f"| start to first answer (s) | {starts} | |",
        f"| memory after the run (MB) | {memory} | |",
        "",
        *_limits(result.limits),
        "",
        *(
            f"- {engine.title}: version {engine.version}{'; ' if engine.note else ''}{engine.note}. `{engine.command}`"
            for engine in engines
        ),
        *(f"- {name}: not measured, {reason}." for name, reason in result.absent.items()),
    ]
    return "\n".join(lines) + "\n"


def _limits(limits: Limits) -> list[str]:
    """What the machine gave in the same run, and what would follow from it alone."""
    gemm, read = (statistics.median(rates) for rates in (limits.gemm_GFLOP_s, limits.read_GB_s))
    lines = [
        "| limit in the same run | rate, by torch | what follows |",
        "|---|---|---|",
    ]
    lines += [
        f"| decode: {num_bytes / 1e6:,.0f} MB of weights, {stored} | {_range(limits.read_GB_s)} GB/s read | "
        f"ITL of {number(num_bytes / read / 1e6)} ms |"
        for stored, num_bytes in limits.decode_bytes.items()
    ]
    lines += [
        f"| prefill: {int(length):,} tokens, {operations / 1e9:,.0f} GFLOP | {_range(limits.gemm_GFLOP_s)} GFLOP/s | "
        f"{number(int(length) * gemm * 1e9 / operations)} tok/s |"
        for length, operations in limits.prefill_operations.items()
    ]
    return lines


def _range(samples: Sequence[float]) -> str:
    return f"{number(statistics.median(samples))} ({number(min(samples))} to {number(max(samples))})"


def _cell(result: Result, engine: EngineResult, figure: Figure) -> str:
    value, ratio = engine.value(figure), result.ratio(engine, figure)
    if value is None:
        return "-"
    return number(value) if ratio is None or engine is result.baseline else f"{number(value)} ({ratio})"


def _pairs(result: Result, figure: Figure) -> str:
    """How many each ratio is made of; where engines differ, the most first."""
    ratios = [result.ratio(engine, figure) for engine in result.engines if engine is not result.baseline]
    counts = {len(ratio.samples) for ratio in ratios if ratio is not None}
    return ", ".join(map(str, sorted(counts, reverse=True)))


def number(value: float) -> str:
    """Three digits of it."""
    digits = 0 if value == 0 else max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{digits}f}"


_WIDTH, _LEFT, _RIGHT, _BAR, _GAP = 860, 230, 70, 11, 12
_COLOURS = ("#4c72b0", "#64b5cd", "#dd8452", "#55a868", "#8172b3", "#8c8c8c", "#ccb974")


def picture(result: Result) -> str:
    """SVG: for each figure, how many times as fast as the baseline each engine is, on a logarithmic scale."""
    rows = [
        (figure, [(index, engine, ratio if figure.more_is_better else 1 / ratio) for index, engine, ratio in ratios])
        for figure in result.figures
        if (ratios := [(i, e, r.median) for i, e in enumerate(result.engines) if (r := result.ratio(e, figure))])
    ]
    speeds = [speed for _, bars in rows for _, _, speed in bars]
    low, high = math.log(min([0.5, *speeds])), math.log(max([2.0, *speeds]))

    def across(speed: float) -> float:
        return _LEFT + (math.log(speed) - low) / (high - low) * (_WIDTH - _LEFT - _RIGHT)

    parts, y = [], 34 + 16 * len(result.engines)
    bottom = y + sum(len(bars) * _BAR + _GAP for _, bars in rows)
    for power in range(math.ceil(low / math.log(2)), math.floor(high / math.log(2)) + 1):
        x, label = across(2.0**power), f"{2**power}x" if power >= 0 else f"1/{2**-power}"
        parts.append(
            f'<line x1="{x:.1f}" y1="{y - 8}" x2="{x:.1f}" y2="{bottom}" stroke="#{"444" if power == 0 else "ddd"}"/>'
        )
        parts.append(f'<text x="{x:.1f}" y="{bottom + 14}" text-anchor="middle">{label}</text>')
    for figure, bars in rows:
        parts.append(f'<text x="8" y="{y + len(bars) * _BAR / 2 + 4:.1f}">{escape(figure.title)}</text>')
        for index, _, speed in bars:
            begin, end = sorted((across(1.0), across(speed)))
            parts.append(
                f'<rect x="{begin:.1f}" y="{y}" width="{max(end - begin, 1):.1f}" height="{_BAR - 2}" '
                f'fill="{_COLOURS[index % len(_COLOURS)]}"><title>{speed:.2f}x</title></rect>'
            )
            y += _BAR
        y += _GAP
    legend = [
        f'<rect x="8" y="{28 + 16 * index}" width="10" height="10" fill="{_COLOURS[index % len(_COLOURS)]}"/>'
        f'<text x="24" y="{37 + 16 * index}">{escape(engine.title)}</text>'
        for index, engine in enumerate(result.engines)
    ]
    title = f"Times as fast as {result.baseline.title}, {result.date}"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {bottom + 24}" '
            'font-family="sans-serif" font-size="12">',
            f'<rect width="{_WIDTH}" height="{bottom + 24}" fill="white"/>',
            f'<text x="8" y="18" font-size="14">{escape(title)}</text>',
            *legend,
            *parts,
            "</svg>\n",
        ]
    )
