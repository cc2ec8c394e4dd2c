"""What the benchmarks of tracing and tuning make of their samples, and the page that is made of the results."""

from __future__ import annotations

import dataclasses
import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np

from benchmarks.tracing import Ratio
from benchmarks.tuning import page
from benchmarks.tuning.pictures import predict_picture, prefix_picture, presets_picture, target_picture
from benchmarks.tuning.predict import HELD_OUT, PREFIXES, RECORDED, at_the_times_of, segments
from cudaprefill.tune.workload import Workload

SVG = "{http://www.w3.org/2000/svg}"


def test_a_ratio_of_many_noisy_pairs_is_found_within_its_interval_and_outliers_do_not_move_it() -> None:
    random = np.random.default_rng(0)
    samples = 0.99 * np.exp(0.05 * random.standard_normal(2000))
    samples[::50] *= 3
    ratio = Ratio.of(samples.tolist())
    assert ratio.low < 0.99 < ratio.high
    assert ratio.high - ratio.low < 0.01
    assert ratio.low <= ratio.median <= ratio.high


def test_the_interval_says_when_nothing_can_be_told() -> None:
    random = np.random.default_rng(1)
    ratio = Ratio.of((1.0 + 0.2 * random.standard_normal(10)).tolist())
    assert ratio.low < 1.0 < ratio.high
    assert ratio.high - ratio.low > 0.05


def test_the_target_picture_has_a_point_a_setting_and_names_it() -> None:
    rows = [
        {"max_num_batched_tokens": 512, "itl_target_ms": target, "itl_p99_ms": itl, "ttft_s": ttft}
        for target, itl, ttft in ((0.0, 500.0, 2.8), (120.0, 122.0, 3.5), ("auto", 151.0, 3.2))
    ]
    root = ElementTree.fromstring(target_picture({"settings": rows}))
    assert len(root.findall(f"{SVG}circle")) == 3
    texts = {text.text for text in root.iter(f"{SVG}text")}
    assert {"budget 512", "target 120 ms", "target auto: 150 ms"} <= texts


def test_predictions_lie_on_the_diagonal_where_they_are_right() -> None:
    times = {"p50": 0.1, "p90": 0.5, "p99": 1.0}
    run = {"measured": {"ttft": times, "itl": times}, "predicted": {"ttft": times, "itl": times}}
    root = ElementTree.fromstring(predict_picture({"runs": [run]}))
    circles = [circle for circle in root.iter(f"{SVG}circle") if circle.get("cx") != "86"]  # the legend's apart
    exact = next(line for line in root.iter(f"{SVG}line") if line.get("stroke") == "#888888")
    x1, y1, x2, y2 = (float(exact.get(name) or "nan") for name in ("x1", "y1", "x2", "y2"))
    assert len(circles) == 4
    for circle in circles:
        x, y = float(circle.get("cx") or "nan"), float(circle.get("cy") or "nan")
        assert abs(y - (y1 + (x - x1) * (y2 - y1) / (x2 - x1))) < 0.5


def test_the_page_and_its_pictures_are_what_the_kept_results_say() -> None:
    assert page.is_up_to_date(), "run python -m benchmarks.tuning.page"


MACHINE = {"cpu": "a processor", "threads": 2, "load": 0.25}
HEAD = {"command": "python -m something", "machine": MACHINE, "seconds": 77}
TIMES = {"p50": 0.05, "p90": 0.5, "p99": 2.0}


def written(tmp_path: Path, content: dict[str, object]) -> Path:
    path = tmp_path / "2026-01-01-result.json"
    path.write_text(json.dumps({**HEAD, **content}))
    return path


def test_every_part_says_where_its_figures_are_from_and_has_a_line_for_each(tmp_path: Path) -> None:
    ratio = {"median": 0.9985, "low": 0.997, "high": 1.0, "pairs": 600}
    errors = {"ttft_p50": 0.05, "ttft_p99": -0.3, "itl_p50": 0.11, "itl_p99": 0.0}
    run = {"measured": {"requests": 99, "ttft": TIMES, "itl": TIMES}, "predicted": {"ttft": TIMES, "itl": TIMES}}
    target = {"itl_p50_ms": 98.0, "itl_p99_ms": 144.0, "ttft_s": 2.5, "ratio": 1.16}
    preset = {"alone_s": 2.0, "ttft_s": 3.0, "itl_p50_ms": 90.0, "itl_p99_ms": 140.0, "batch_s": 4.5}
    seconds = {"none": [2.0, 2.0, 9.0], "auto": [2.2, 2.1, 2.3]}
    by_kind = {"all": {"differences_ms": [0.2] * 9 + [6.0], "client_late_ms": [0.1] * 9 + [5.0]}}
    account = {"goal_ms": 2.0, "runs": [{"threads": "all", "by_kind": by_kind}, {"threads": "1", "by_kind": by_kind}]}
    parts = {
        page.target_part: (
            {
                "settings": [
                    {**target, "max_num_batched_tokens": 128, "itl_target_ms": 0.0},
                    {**target, "max_num_batched_tokens": 512, "itl_target_ms": 120.0},
                    {**target, "max_num_batched_tokens": 512, "itl_target_ms": "auto"},
                ]
            },
            ["| budget 128, no target | 98 ms | 144 ms | 2.50 s | 1.16 |", "| `--itl-target-ms 120` |", "ms auto` ("],
        ),
        page.batch_part: (
            {"runs": [{"requests": "all at once", "seconds": seconds, "ratios": [1.1, 1.05, 0.9]}]},
            ["| all at once | 2.00 s | 2.20 s | 1.050 (0.900 to 1.100) |"],
        ),
        page.prefix_part: (
            {"question": 32, "texts": [{"tokens": 2000, "cold_s": 1.5, "cached_s": 0.05}]},
            ["| 2,000 | 1500 ms | 50.0 ms | 30 times |"],
        ),
        page.presets_part: (
            {"presets": [{"preset": "rag", **preset}]},
            ["| `rag` | 2.00 s | 3.00 s | 90 ms | 140 ms | 4.50 s |"],
        ),
        page.predict_part: (
            {
                "rounds": 7,
                "rate": 1.5,
                "steps": 1234,
                "runs": [{"name": "recorded", "errors": errors, **run}, {"name": "other", "errors": errors, **run}],
            },
            [
                "| other | 50.0 ms / 50.0 ms, +5.0% | 2.00 s / 2.00 s, -30.0% | 50.0 ms / 50.0 ms, +11.0% |",
                "Of 2 held-out figures at p50, 1 are off by more than 10%; of 2 at p99, 1 by more than 20%.",
            ],
        ),
        page.tracing_part: (
            {
                "traced": {"wall": ratio, "processor": ratio},
                "control": {"wall": ratio, "processor": ratio},
                "own": {"engine_us_a_step": 43.0, "writer_us_a_step": 32.0, "share": 0.0037},
            },
            ["| traced | 0.9985 (0.9970 to 1.0000), 600 pairs | 0.9985", "43 microseconds a step", "0.37% of the time"],
        ),
        page.explain_part: (
            account,
            ["| its read returned | 0.20 ms | 5.48 ms | 90.0% of 10 |", "| 1 of 2 cores |", "| 100.0% of 10 |"],
        ),
    }
    for part, (content, expected) in parts.items():
        text = part(written(tmp_path, content))
        source = "`python -m something`, 77 s on 2 cores (a processor) with a load of 0.2 at the beginning"
        assert text.startswith(source), text
        for line in expected:
            assert line in text, text


def test_prefix_and_preset_pictures_have_a_point_for_each_figure() -> None:
    texts = [{"tokens": tokens, "cold_s": tokens / 1000, "cached_s": 0.04} for tokens in (250, 1000, 4000)]
    root = ElementTree.fromstring(prefix_picture({"question": 32, "texts": texts}))
    assert len(root.findall(f"{SVG}circle")) == 6 + 2  # and the legend's
    assert {"500", "1,000", "2,000"} <= {text.text for text in root.iter(f"{SVG}text")}
    rows = [{"preset": name, "itl_p99_ms": 150.0, "ttft_s": 2.5} for name in ("rag", "code", "chat")]
    root = ElementTree.fromstring(presets_picture({"presets": rows}))
    assert {"rag", "code", "chat"} <= {text.text for text in root.iter(f"{SVG}text")}


def test_segments_of_a_held_out_run_begin_with_the_recorded_ones_and_share_no_prefix_with_each_other() -> None:
    held_out = next(setting for setting in HELD_OUT if setting.other_traffic)
    recorded, other = (segments(setting, 3, 5, 2.0, 0) for setting in (RECORDED, held_out))
    run = Workload(
        [
            dataclasses.replace(each, time=100.0 * place + each.time)
            for place, segment in enumerate(recorded)
            for each in segment
        ],
        "recorded",
    )
    moved = at_the_times_of(run, other)
    assert [arrival.time for arrival in moved.arrivals[::5]] == [0.0, 100.0, 200.0]
    assert [each.num_prompt_tokens for each in moved] == [each.num_prompt_tokens for part in other for each in part]
    names = [{int(arrival.prefix[0]) // PREFIXES for arrival in segment} for segment in other]
    assert names == [{0}, {1}, {2}]


def test_the_same_traffic_is_asked_of_every_setting_that_does_not_have_another() -> None:
    asked = [
        [
            (each.time, each.num_prompt_tokens, each.num_output_tokens)
            for part in segments(setting, 2, 5, 2.0, 0)
            for each in part
        ]
        for setting in (RECORDED, *HELD_OUT)
    ]
    same = [setting.other_traffic for setting in (RECORDED, *HELD_OUT)]
    assert all((each == asked[0]) != other for each, other in zip(asked, same, strict=True))
