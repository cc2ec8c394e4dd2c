"""The everyday benchmarks, beside the last run that was kept.

    python -m benchmarks.compare [--keep] [--only scheduler,kv_utilisation,engine,server]

A figure is marked where every sample of this run is better, or every one worse, than all of the kept run: with five of
each that happens by chance once in 126 times. The samples know only the noise within their runs: where the machine
itself was faster that day, compare the figures that are ratios to its limits. The exit status tells whether the
benchmarks ran, not how fast they were.

--keep writes benchmarks/results/DATE-bench-cpu.json, which later runs are compared with.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure, machine, read_figures

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
BENCHMARKS = ("scheduler", "kv_utilisation", "engine", "server")


def verdict(now: Figure, kept: Figure) -> str:
    """ "better" or "worse" where the samples of the two runs do not overlap, else ""."""
    if min(now.samples) > max(kept.samples):
        return "better" if now.more_is_better else "worse"
    if max(now.samples) < min(kept.samples):
        return "worse" if now.more_is_better else "better"
    return ""


def table(now: Sequence[Figure], kept: Mapping[str, Figure]) -> str:
    """A line a figure: this run, the kept run, the ratio of their medians, the spread of each, and the mark."""
    lines = [f"{'':52} {'now':>10} {'kept':>10} {'ratio':>6}  {'spread now':>10} {'kept':>6}"]
    for figure in now:
        line = f"{figure.name[:44]:44} {figure.unit:>7} {figure.median:10.4g}"
        if figure.name in kept:
            old = kept[figure.name]
            ratio = figure.median / old.median if old.median else float("nan")
            line += (
                f" {old.median:10.4g} {ratio:6.2f}  {spread(figure):10.1%} {spread(old):6.1%}  {verdict(figure, old)}"
            )
        else:
            line += f" {'':10} {'new':>6}  {spread(figure):10.1%}"
        lines.append(line.rstrip())
    gone = [name for name in kept if name not in {figure.name for figure in now}]
    lines += [f"{name[:44]:44} was not measured" for name in gone]
    return "\n".join(lines)


def spread(figure: Figure) -> float:
    """From the least sample to the greatest, over the median."""
    return (max(figure.samples) - min(figure.samples)) / figure.median if figure.median else 0.0


def last_kept(results: Path) -> Path | None:
    return max(results.glob("*-bench-*.json"), default=None)  # names begin with the date


def differences(now: Mapping[str, Any], kept: Mapping[str, Any]) -> list[str]:
    """What of the machine is not as it was; the load of the moment apart."""
    return [
        f"{name} was {kept.get(name)!r}, is {value!r}"
        for name, value in now.items()
        if name != "load" and kept.get(name) != value
    ]


def measure(names: Sequence[str]) -> list[Figure]:
    """Each benchmark in a process of its own. Raises CalledProcessError if one fails."""
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            path = Path(folder) / f"{name}.json"
            print(f"--- {name}", flush=True)
            subprocess.run([sys.executable, "-m", f"benchmarks.{name}", "--json", str(path)], cwd=ROOT, check=True)
            figures += read_figures(path)
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", action="store_true", help="write a result that later runs are compared with")
    parser.add_argument("--only", default=",".join(BENCHMARKS), metavar="NAME,...", help="(default: all)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="(default: benchmarks/results)")
    flags = parser.parse_args()
    names = flags.only.split(",")
    if unknown := set(names) - set(BENCHMARKS):
        parser.error(f"--only knows {', '.join(BENCHMARKS)}, not {', '.join(sorted(unknown))}")
    this_machine = machine()
    try:
        figures = measure(names)
    except subprocess.CalledProcessError as error:
        print(f"compare: {' '.join(error.cmd[1:3])} ended with status {error.returncode}", file=sys.stderr)
        return 1

    path = last_kept(flags.results)
    kept: dict[str, Figure] = {}
    if path is None:
        print(f"\nNo result is kept in {flags.results}: --keep keeps this one.")
    else:
        content = json.loads(path.read_text())
        print(f"\nBeside {path.name}")
        for difference in differences(this_machine, content["machine"]):
            print(f"  on another machine: {difference}")
        kept = {figure.name: figure for figure in read_figures(path)}
    print(table(figures, kept))
    if flags.keep:
        flags.results.mkdir(parents=True, exist_ok=True)
        date = datetime.now(timezone.utc).date().isoformat()
        written = flags.results / f"{date}-bench-cpu.json"
        content = {"date": date, "machine": this_machine, "figures": [asdict(figure) for figure in figures]}
        written.write_text(json.dumps(content, indent=1) + "\n")
        print(f"\nKept as {written.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
