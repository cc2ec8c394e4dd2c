"""Tuning on the real model: what the settings do, and how well a replay predicts it.

    python -m benchmarks.tuning target|batch|predict|prefix|presets [flags] [--keep]

target   four chats stream while a prompt of 3,200 tokens arrives, with fixed budgets and with targets
batch    what the target of a CPU costs requests that come all at once, or from clients in turn
predict  records, replays with other settings and other traffic, and lets the engine run these too, by turns
prefix   a question behind shared texts of several lengths, new and cached
presets  a long prompt, the same beside four chats, and requests all at once, with the settings of each preset

--keep writes benchmarks/results/DATE-tuning-EXPERIMENT.json, its picture, and its part of docs/tuning.md. The machine
should have nothing else to do.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.tuning import batch, predict, prefix, presets, target
from benchmarks.tuning.result import Result

EXPERIMENTS = {"target": target, "batch": batch, "predict": predict, "prefix": prefix, "presets": presets}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    chosen = parser.add_subparsers(dest="experiment", required=True)
    for name, experiment in EXPERIMENTS.items():
        own = chosen.add_parser(name, description=experiment.__doc__)
        experiment.add_flags(own)
        own.add_argument("--json", type=Path, help="write the figures to this file")
        own.add_argument("--keep", action="store_true", help="write them into the results and into docs/tuning.md")
    flags = parser.parse_args()
    result = Result.begin("benchmarks.tuning")
    figures = EXPERIMENTS[flags.experiment].measure(flags)
    result.end(figures, flags.json, f"tuning-{flags.experiment}" if flags.keep else None)
    return 0


if __name__ == "__main__":
    sys.exit(main())
