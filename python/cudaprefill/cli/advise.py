"""`cudaprefill advise`: settings that keep promises, as flags."""

from __future__ import annotations

import argparse

from cudaprefill.cli.progress import Progress
from cudaprefill.config import flags_of
from cudaprefill.tune.advise import Advice, Promise, advise
from cudaprefill.tune.report import Row, as_json, table
from cudaprefill.tune.sweep import Experiment


def run(flags: argparse.Namespace) -> int:
    """0 if the promises can be kept, else 1."""
    promises = [
        Promise(kind, percentile, getattr(flags, f"{kind}_{percentile}"))
        for kind in ("ttft", "itl")
        for percentile in ("p50", "p90", "p99")
        if getattr(flags, f"{kind}_{percentile}") is not None
    ]
    for promise in promises:
        if promise.limit <= 0:
            raise ValueError(f"--{promise.kind}-{promise.percentile} must be positive, got {promise.limit}")
    experiment = Experiment.open(flags.workload, flags.cost_from, flags.rate)
    with Progress("replaying"):
        advice = advise(experiment, promises)
    if flags.json:
        print(
            as_json(
                advice.tried,
                flags=flags_of(advice.best.settings),
                kept=advice.kept,
                predicted=advice.best.figures.as_dict(),
                margin=advice.margin,
                confidence=advice.confidence,
            ),
            end="",
        )
    else:
        print(_text(experiment, advice, promises))
    return 0 if advice.kept else 1


def _text(experiment: Experiment, advice: Advice, promises: list[Promise]) -> str:
    best = advice.best
    outcome = "keeps what was asked for" if advice.kept else "comes closest; no setting that was tried keeps it all"
    rows = [Row(best.settings, best.figures)]
    if experiment.recorded is not None:
        rows.insert(0, Row({}, experiment.recorded, "recorded"))
    lines = [flags_of(best.settings), "", f"This {outcome} ({len(advice.tried)} settings tried).", "", table(rows), ""]
    for promise in promises:
        value = promise.value(best.figures)
        lines.append(f"{promise}: {value * 1e3:.1f} ms predicted, {_compared(promise.excess(best.figures))} the limit")
    lines.append(f"The figures may be off by {advice.margin:.0%}. Confidence: {advice.confidence}.")
    return "\n".join(lines)


def _compared(excess: float) -> str:
    return f"{-excess:.0%} below" if excess <= 0 else f"{excess:.0%} above"
