"""Our server as a client sees it: the workloads of the comparison with other engines, on our engine alone.

python -m benchmarks.server [--rounds 5] [--json FILE] [--tiny]
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks.figures import Figure, write_figures
from benchmarks.peers.client import Client
from benchmarks.peers.engines import RunningEngine, our_engine
from benchmarks.peers.result import figures_of
from benchmarks.peers.workloads import Samples, Sizes, workloads
from cudaprefill import __version__
from cudaprefill.models import default_model_path, read_model_config


async def one_round(url: str, sizes: Sizes) -> Samples:
    samples: Samples = {}
    async with Client(url) as client:
        for workload in workloads(sizes):
            samples |= await workload.run(client, sizes, random.Random())
    return samples


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a GGUF file or a folder (default: the packaged model)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tiny", action="store_true", help="small sizes: to see that all of it runs")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    flags = parser.parse_args()
    model = flags.model or default_model_path()
    vocab_size = read_model_config(model).vocab_size
    tiny = Sizes.tiny(vocab_size)
    with tempfile.TemporaryDirectory() as folder:
        server = RunningEngine(our_engine(model, __version__), Path(folder) / "log")
        try:
            server.wait_until_ready()
            asyncio.run(one_round(server.url, tiny))
            server.settle()
            rounds = [
                asyncio.run(one_round(server.url, tiny if flags.tiny else Sizes(vocab_size)))
                for _ in range(flags.rounds)
            ]
        finally:
            server.stop()
    figures = [
        Figure(
            f"server: {figure.title}",
            figure.unit,
            [figure.statistic(samples[figure.samples]) for samples in rounds],
            figure.more_is_better,
        )
        for figure in figures_of(rounds[0])
    ]
    for each in figures:
        print(f"{each.name:44} {statistics.median(each.samples):10.4g} {each.unit}")
    if flags.json:
        write_figures(flags.json, figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
