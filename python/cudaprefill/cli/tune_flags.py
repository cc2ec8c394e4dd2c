"""The flags of explain, trace, replay and advise."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TypeVar

from cudaprefill.cli.engine_flags import count, itl_target

Value = TypeVar("Value")

WORKLOADS = (
    "a recorded trace, Azure's CSV, Mooncake's JSONL, or synthetic:rate=2,requests=500,prompt=800,output=100,..."
)


def add_tune_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    explain = commands.add_parser("explain", help="why a request's first token took so long, and which token was late")
    explain.add_argument("request", metavar="REQUEST", help="its id, as the answer or the log names it")
    explain.add_argument("--url", default="http://127.0.0.1:8000", help="the server (default: %(default)s)")
    explain.add_argument("--api-key", metavar="KEY", help="of the server (default: $CUDAPREFILL_API_KEY)")
    explain.add_argument("--trace", metavar="FILE", help="look into a recorded trace instead of asking a server")
    explain.add_argument(
        "--itl-limit-ms", type=float, default=100.0, metavar="MS", help="a longer gap is late (default: %(default)s)"
    )
    explain.add_argument("--json", action="store_true", help="as one JSON object")

    trace = commands.add_parser("trace", help="what to do with a trace that --trace recorded")
    actions = trace.add_subparsers(dest="action", required=True, metavar="ACTION")
    export = actions.add_parser("export", help="as a Chrome trace, which https://ui.perfetto.dev opens")
    export.add_argument("trace", metavar="FILE")
    export.add_argument("--output", "-o", required=True, metavar="OUT.json")

    replay = commands.add_parser("replay", help="what other settings would do to recorded traffic, without a model")
    _add_workload_flags(replay)
    several = replay.add_argument_group("settings to try, several separated by commas")
    several.add_argument("--max-num-batched-tokens", type=_listed(count), metavar="N,...")
    several.add_argument("--itl-target-ms", type=_listed(itl_target), metavar="MS,...", help="0: no target; auto")
    several.add_argument("--max-num-seqs", type=_listed(count), metavar="N,...")
    several.add_argument("--long-prefill-token-threshold", type=_listed(count), metavar="N,...")
    several.add_argument("--num-blocks", type=_listed(count), metavar="N,...", help="of the KV cache")
    several.add_argument("--enable-prefix-caching", type=_listed(_switch), metavar="on,off")
    replay.add_argument("--json", action="store_true", help="as one JSON object")
    replay.add_argument("--plot", metavar="OUT.svg", help="TTFT against ITL, a line a setting")

    advise = commands.add_parser("advise", help="the settings that keep TTFT and ITL within limits, found by replay")
    _add_workload_flags(advise)
    limits = advise.add_argument_group("limits, in seconds")
    for kind in ("ttft", "itl"):
        for percentile in ("p50", "p90", "p99"):
            limits.add_argument(f"--{kind}-{percentile}", type=float, metavar="S")
    advise.add_argument("--json", action="store_true", help="as one JSON object")


def _add_workload_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("workload", metavar="WORKLOAD", help=WORKLOADS.replace("%", "%%"))
    parser.add_argument(
        "--cost-from", metavar="TRACE", help="the recorded trace that says what steps cost and settings"
    )
    parser.add_argument("--rate", type=float, default=1.0, metavar="X", help="arrivals X times as fast")


def _listed(kind: Callable[[str], Value]) -> Callable[[str], list[Value]]:
    def parse(text: str) -> list[Value]:
        return [kind(item) for item in text.split(",")]

    parse.__name__ = "list"
    return parse


def _switch(text: str) -> bool:
    if text not in ("on", "off"):
        raise argparse.ArgumentTypeError(f"expected on or off, got {text!r}")
    return text == "on"
