"""`cudaprefill replay`: recorded traffic with other settings, on a virtual clock."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from cudaprefill.cli.progress import Progress
from cudaprefill.tune.report import Row, as_json, picture, table
from cudaprefill.tune.sweep import Experiment, combinations

SETTINGS = (
    "max_num_batched_tokens",
    "itl_target_ms",
    "max_num_seqs",
    "long_prefill_token_threshold",
    "num_blocks",
    "enable_prefix_caching",
)


def run(flags: argparse.Namespace) -> int:
    experiment = Experiment.open(flags.workload, flags.cost_from, flags.rate)
    tried = combinations({name: getattr(flags, name) for name in SETTINGS if getattr(flags, name) is not None})
    rows = [] if experiment.recorded is None else [Row({}, experiment.recorded, "recorded")]
    with Progress("replaying") as progress:
        for done, settings in enumerate([{}, *(settings for settings in tried if settings)]):
            rows.append(Row(settings, experiment.replayed(settings), "" if settings else "replayed as recorded"))
            progress(done + 1, len(tried) + 1)
    errors = experiment.own_error()
    if flags.json:
        print(as_json(rows, model_error=errors, workload=experiment.workload.source), end="")
    else:
        print(table(rows))
        print(f"\n{_model(experiment, errors)}")
    for row in rows:
        if experiment.is_extrapolated(row.figures):
            print(
                f"cudaprefill: {row.name}: steps of up to {row.figures.largest_step:,} tokens, recorded were "
                f"{experiment.model.largest_step:,} at most: take its figures for a guess",
                file=sys.stderr,
            )
    if flags.plot is not None:
        Path(flags.plot).write_text(picture(rows, f"{experiment.workload.source}: p50 (large), p90, p99 (small)"))
    return 0


def _model(experiment: Experiment, errors: dict[str, float] | None) -> str:
    model = experiment.model
    words = f"cost model: {model.num_steps:,} steps, half of them within {model.median_error:.1%} of cost and pace"
    if errors is not None:
        listed = ", ".join(f"{name.replace('_', ' ')} {error:+.1%}" for name, error in errors.items())
        words += f"; on the recorded run itself: {listed}"
    return words
