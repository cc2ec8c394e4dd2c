"""Fills docs/tuning.md, and draws its pictures, from the results that are kept: no figure on it is typed by hand.

    python -m benchmarks.tuning.page [--check]

--check writes nothing and has exit status 1 where the page or a picture is not what the results say.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.page_parts import RESULTS, ROOT, PagePart, filled
from benchmarks.tuning.pictures import GOALS, PICTURES, predict_picture, prefix_picture, presets_picture, target_picture
from benchmarks.tuning.scenes import BATCH, BATCH_PROMPT, BATCH_TOKENS, LONG
from cudaprefill.protocol.itl_target import itl_target_text

PAGE = ROOT / "docs" / "tuning.md"
_DRAWN: dict[str, Callable[[dict[str, Any]], str]] = {
    "target": target_picture,
    "predict": predict_picture,
    "prefix": prefix_picture,
    "presets": presets_picture,
}


def _source(path: Path, content: dict[str, Any]) -> str:
    """Where figures are from. The load tells whether the machine had something else to do."""
    where = ""
    if "machine" in content:
        machine = content["machine"]
        where = (
            f", {content['seconds']} s on {machine['threads']} cores ({machine['cpu']}) with a load of "
            f"{machine['load']:.1f} at the beginning"
        )
    return f"`{content['command']}`{where} (`benchmarks/results/{path.name}`):"


def _table(head: str, rows: list[str]) -> str:
    return "\n".join([head, "|---" * (head.count("|") - 1) + "|", *rows])


def target_part(path: Path) -> str:
    content = json.loads(path.read_text())
    rows = []
    for row in content["settings"]:
        name = (
            f"`--itl-target-ms {row['itl_target_ms']:g}`"
            if isinstance(row["itl_target_ms"], float) and row["itl_target_ms"]
            else f"`--itl-target-ms auto` ({itl_target_text('auto')})"
            if row["itl_target_ms"]
            else f"budget {row['max_num_batched_tokens']}, no target"
        )
        rows.append(
            f"| {name} | {row['itl_p50_ms']:.0f} ms | {row['itl_p99_ms']:.0f} ms | {row['ttft_s']:.2f} s "
            f"| {row['ratio']:.2f} |"
        )
    head = f"| setting | chats' ITL p50 | p99 | TTFT of {LONG:,} tokens | beside the same prompt alone |"
    picture = "![Long prompt and streams by setting](tuning/target.svg)"
    return f"{_source(path, content)}\n\n{_table(head, rows)}\n\n{picture}"


def batch_part(path: Path) -> str:
    content = json.loads(path.read_text())
    rows = []
    for run in content["runs"]:
        seconds = [statistics.median(run["seconds"][name]) for name in ("none", "auto")]
        rows.append(
            f"| {run['requests']} | {seconds[0]:.2f} s | {seconds[1]:.2f} s | {statistics.median(run['ratios']):.3f} "
            f"({min(run['ratios']):.3f} to {max(run['ratios']):.3f}) |"
        )
    requests = f"{BATCH} requests of {BATCH_PROMPT} + {BATCH_TOKENS} tokens"
    head = f"| {requests} | no target | `auto` | ratio, and of single pairs |"
    return f"{_source(path, content)}\n\n{_table(head, rows)}"


def prefix_part(path: Path) -> str:
    content = json.loads(path.read_text())
    rows = [
        f"| {row['tokens']:,} | {row['cold_s'] * 1e3:.0f} ms | {row['cached_s'] * 1e3:.1f} ms "
        f"| {row['cold_s'] / row['cached_s']:.0f} times |"
        for row in content["texts"]
    ]
    head = f"| tokens of the text, before a question of {content['question']} | TTFT, new | TTFT, cached | shorter by |"
    return f"{_source(path, content)}\n\n{_table(head, rows)}\n\n![TTFT by length of the text](tuning/prefix.svg)"


def presets_part(path: Path) -> str:
    content = json.loads(path.read_text())
    rows = [
        f"| `{row['preset']}` | {row['alone_s']:.2f} s | {row['ttft_s']:.2f} s | {row['itl_p50_ms']:.0f} ms "
        f"| {row['itl_p99_ms']:.0f} ms | {row['batch_s']:.2f} s |"
        for row in content["presets"]
    ]
    head = (
        f"| preset | TTFT of {LONG:,} tokens alone | beside four chats | the chats' ITL p50 meanwhile | p99 "
        f"| {BATCH} x ({BATCH_PROMPT} + {BATCH_TOKENS}) at once |"
    )
    return f"{_source(path, content)}\n\n{_table(head, rows)}\n\n![The presets](tuning/presets.svg)"


def predict_part(path: Path) -> str:
    content = json.loads(path.read_text())
    kinds = ("ttft_p50", "ttft_p99", "itl_p50", "itl_p99")
    missed = dict.fromkeys(GOALS, 0)
    rows = []
    for number, run in enumerate(content["runs"]):
        cells = []
        for kind in kinds:
            goal = GOALS[kind.endswith("p99")]
            error = run["errors"][kind]
            missed[goal] += number > 0 and abs(error) > goal
            times = [run[which][kind[:-4]][kind[-3:]] for which in ("predicted", "measured")]
            cells.append(f"{_time(times[0])} / {_time(times[1])}, {error:+.1%}")
        rows.append(f"| {run['name']} | {' | '.join(cells)} |")
    head = "| predicted / measured | TTFT p50 | TTFT p99 | ITL p50 | ITL p99 |"
    held_out = 2 * (len(content["runs"]) - 1)
    first = content["runs"][0]
    said = (
        f"{content['rounds']} rounds of short segments, one a setting, by turns; {first['measured']['requests']} "
        f"requests a setting, of the recorded traffic {content['rate']:.2f} a second. The model saw the "
        f"{content['steps']:,} steps of the first line and nothing else."
    )
    outcome = (
        f"Of {held_out} held-out figures at p50, {missed[GOALS[0]]} are off by more than {GOALS[0]:.0%}; of {held_out} "
        f"at p99, {missed[GOALS[1]]} by more than {GOALS[1]:.0%}."
    )
    picture = "![Predicted and measured](tuning/predict.svg)"
    return f"{_source(path, content)}\n\n{said}\n\n{_table(head, rows)}\n\n{outcome}\n\n{picture}"


def _time(seconds: float) -> str:
    return (
        f"{seconds * 1e3:.1f} ms" if seconds < 0.1 else f"{seconds * 1e3:.0f} ms" if seconds < 1 else f"{seconds:.2f} s"
    )


def tracing_part(path: Path) -> str:
    content = json.loads(path.read_text())
    rows = [
        f"| {name} | {_ratio(content[key]['wall'])} | {_ratio(content[key]['processor'])} |"
        for name, key in (("traced", "traced"), ("nothing traced", "control"))
    ]
    head = "| throughput of the first of a pair over the second's | by time passed | by processor time |"
    own = content["own"]
    said = (
        f"In brackets: where 95 % of the medians of resampled pairs lie. Of its own, tracing takes "
        f"{own['engine_us_a_step']:.0f} microseconds a step in the engine's thread and {own['writer_us_a_step']:.0f} "
        f"in the writer's, {own['share']:.2%} of the time."
    )
    return f"{_source(path, content)}\n\n{_table(head, rows)}\n\n{said}"


def _ratio(ratio: dict[str, Any]) -> str:
    return f"{ratio['median']:.4f} ({ratio['low']:.4f} to {ratio['high']:.4f}), {ratio['pairs']} pairs"


def explain_part(path: Path) -> str:
    content = json.loads(path.read_text())
    rows = []
    for run in content["runs"]:
        read, late = (np.array(run["by_kind"]["all"][name]) for name in ("differences_ms", "client_late_ms"))
        threads = (
            "all cores" if run["threads"] == "all" else f"{run['threads']} of {content['machine']['threads']} cores"
        )
        for until, values in (("its read returned", read), ("its bytes were there to be read", read - late)):
            within = np.mean(np.abs(values) <= content["goal_ms"])
            p50, p99 = np.quantile(values, (0.5, 0.99))
            rows.append(f"| {threads} | {until} | {p50:.2f} ms | {p99:.2f} ms | {within:.1%} of {len(values)} |")
    head = f"| kernels on | client until | minus account, p50 | p99 | within {content['goal_ms']:g} ms |"
    return f"{_source(path, content)}\n\n{_table(head, rows)}"


def _none(command: str) -> str:
    return f"No result is kept yet: `{command}`."


PARTS = (
    *(
        PagePart(name, f"*-tuning-{name}.json", make, _none(f"python -m benchmarks.tuning {name} --keep"))
        for name, make in (
            ("target", target_part),
            ("batch", batch_part),
            ("prefix", prefix_part),
            ("presets", presets_part),
            ("predict", predict_part),
        )
    ),
    PagePart("tracing", "*-tracing.json", tracing_part, _none("python -m benchmarks.tracing --keep")),
    PagePart("explain", "*-explain.json", explain_part, _none("python -m benchmarks.explain --keep")),
)


def pictures(results: Path) -> dict[Path, str]:
    """By where each belongs, of the newest result of each kind."""
    drawn = {}
    for name, draw in _DRAWN.items():
        newest = max(results.glob(f"*-tuning-{name}.json"), default=None)
        if newest is not None:
            drawn[PICTURES / f"{name}.svg"] = draw(json.loads(newest.read_text()))
    return drawn


def refresh() -> None:
    PAGE.write_text(filled(PAGE.read_text(), PARTS, RESULTS))
    for path, picture in pictures(RESULTS).items():
        path.write_text(picture)


def is_up_to_date() -> bool:
    page = PAGE.read_text()
    return filled(page, PARTS, RESULTS) == page and all(
        path.exists() and path.read_text() == picture for path, picture in pictures(RESULTS).items()
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    if parser.parse_args().check:
        return int(not is_up_to_date())
    refresh()
    return 0


if __name__ == "__main__":
    sys.exit(main())
