"""What the target of a CPU costs in throughput: requests that come all at once, and clients that ask again when they
are answered, with "auto" and without a target by turns."""

from __future__ import annotations

import argparse
import statistics
from typing import Any

from benchmarks.tuning.scenes import BATCH, BATCH_PROMPT, BATCH_TOKENS, at_once, in_turn
from cudaprefill import LLM
from cudaprefill.protocol.itl_target import ItlTarget


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repeats", type=int, default=3)


def measure(flags: argparse.Namespace) -> dict[str, Any]:
    rows = []
    with LLM(max_num_seqs=BATCH) as llm:
        print(llm.info)
        at_once(llm, 0)
        for name, run in (("all at once", at_once), ("8 clients in turn", in_turn)):
            seconds: dict[str, list[float]] = {"auto": [], "none": []}
            for repeat in range(flags.repeats):
                order: tuple[ItlTarget, ...] = ("auto", 0.0) if repeat % 2 else (0.0, "auto")
                for target in order:
                    llm.change_settings(itl_target_ms=target)
                    taken = run(llm, 1000 * (2 * repeat + (target == "auto") + 1))
                    seconds["auto" if target == "auto" else "none"].append(taken)
            ratios = [auto / none for auto, none in zip(seconds["auto"], seconds["none"], strict=True)]
            rows.append({"requests": name, "seconds": seconds, "ratios": ratios})
            print(
                f"{BATCH} x ({BATCH_PROMPT}, {BATCH_TOKENS}), {name:18} auto {statistics.median(seconds['auto']):.2f} "
                f"s, no target {statistics.median(seconds['none']):.2f} s: {statistics.median(ratios):.3f} "
                f"(from {min(ratios):.3f} to {max(ratios):.3f})"
            )
    return {"runs": rows}
