"""What the benchmarks of tracing and tuning make of their samples."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import numpy as np

from benchmarks.tracing import Ratio
from benchmarks.tuning_pictures import predict_picture, target_picture

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
