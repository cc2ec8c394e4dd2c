"""Replayed settings as a table, JSON and a picture; advice; and the commands that print them."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from cudaprefill.cli.main import main
from cudaprefill.config import flags_of
from cudaprefill.tune.advise import Promise, advise
from cudaprefill.tune.figures import Figures
from cudaprefill.tune.report import Row, as_json, picture, table
from cudaprefill.tune.sweep import Experiment, combinations
from tests.tune.test_replay import CONFIG, Machine, record
from tests.tune.test_workload import SyntheticTraffic

TRAFFIC = SyntheticTraffic(requests=40, rate=0.9, prompt=500, output=30, seed=3)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("trace") / "trace"
    record(path, CONFIG, TRAFFIC.make(), Machine())
    return str(path)


def figures(ttft: float, itl: float) -> Figures:
    times = [{name: value * factor for name, factor in (("p50", 1), ("p90", 2), ("p99", 4))} for value in (ttft, itl)]
    return Figures(
        requests=10,
        refused=1,
        ttft=times[0],
        itl=times[1],
        output_tokens_per_second=1234.5,
        hit_rate=0.25,
        preemptions=3,
        steps=9,
        largest_step=512,
        seconds=8.0,
    )


ROWS = [Row({}, figures(0.4, 0.02), "recorded"), Row({"max_num_batched_tokens": 512}, figures(1.5, 0.3))]


def test_settings_read_as_flags() -> None:
    settings = {
        "max_num_batched_tokens": 512,
        "itl_target_ms": 50.0,
        "enable_prefix_caching": False,
        "num_blocks": None,
    }
    assert flags_of(settings) == "--max-num-batched-tokens 512 --itl-target-ms 50 --no-enable-prefix-caching"
    assert flags_of({"enable_prefix_caching": True}) == "--enable-prefix-caching"


def test_the_table_has_a_line_a_setting() -> None:
    head, recorded, replayed = table(ROWS).splitlines()
    assert " ".join(head.split()) == "TTFT p50 p90 p99 ITL p50 p90 p99 tok/s hits preempted refused"
    assert " ".join(recorded.split()) == ("recorded 400.0 ms 800.0 ms 1.60 s 20.0 ms 40.0 ms 80.0 ms 1,234.5 25.0% 3 1")
    assert re.match(r"--max-num-batched-tokens 512 +1.50 s +3.00 s", replayed)


def test_json_has_all_figures() -> None:
    document = json.loads(as_json(ROWS, model_error={"ttft_p50": 0.01}))
    assert [row["name"] for row in document["settings"]] == ["recorded", "--max-num-batched-tokens 512"]
    assert document["settings"][1]["itl"]["p99"] == pytest.approx(1.2)
    assert document["model_error"] == {"ttft_p50": 0.01}


def test_the_picture_is_svg_with_a_line_a_setting_within_its_frame() -> None:
    root = ElementTree.fromstring(picture(ROWS, "a < b"))
    lines = root.findall("{http://www.w3.org/2000/svg}polyline")
    assert len(lines) == 2
    for line in lines:
        for x, y in (map(float, point.split(",")) for point in line.attrib["points"].split()):
            assert 0 <= x <= 760
            assert 0 <= y <= 460
    texts = {element.text for element in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"recorded", "--max-num-batched-tokens 512", "a < b", "TTFT", "ITL"} <= texts


def test_combinations_are_all_of_them() -> None:
    assert combinations({"a": [1, 2], "b": [3]}) == [{"a": 1, "b": 3}, {"a": 2, "b": 3}]
    assert combinations({}) == [{}]


def test_advice_keeps_its_promise_when_it_is_tried(trace: str) -> None:
    experiment = Experiment.open(trace)
    advice = advise(experiment, [Promise("itl", "p99", 0.08), Promise("ttft", "p99", 10.0)])
    assert advice.kept
    assert experiment.replayed(advice.best.settings, seed=5).itl["p99"] < 0.08 * 1.1
    assert set(advice.spread) == set(advice.model_error) == {"ITL p99 80 ms", "TTFT p99 10000 ms"}
    assert 0 <= advice.margin < 0.5
    unlimited = [row for row in advice.tried if row.figures.itl["p99"] > 0.08]
    assert unlimited  # so there was something to choose


def test_what_cannot_be_kept_is_said_and_the_closest_is_proposed(trace: str) -> None:
    advice = advise(Experiment.open(trace), [Promise("itl", "p50", 0.001)])
    assert not advice.kept
    assert advice.best.figures.itl["p50"] == min(row.figures.itl["p50"] for row in advice.tried)


def test_replay_prints_the_recorded_run_its_prediction_and_each_setting(
    trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plot = tmp_path / "plot.svg"
    assert (
        main(["replay", trace, "--max-num-batched-tokens", "64,1K", "--itl-target-ms", "0,60", "--plot", str(plot)])
        == 0
    )
    output = capsys.readouterr()
    lines = output.out.splitlines()
    assert [line.split("  ")[0] for line in lines[1:7]] == [
        "recorded",
        "replayed as recorded",
        "--max-num-batched-tokens 64 --itl-target-ms 0",
        "--max-num-batched-tokens 64 --itl-target-ms 60",
        "--max-num-batched-tokens 1024 --itl-target-ms 0",
        "--max-num-batched-tokens 1024 --itl-target-ms 60",
    ]
    assert re.search(r"on the recorded run itself: ttft p50 [+-]\d", lines[-1])
    assert "--max-num-batched-tokens 1024 --itl-target-ms 0: steps of up to" in output.err
    assert plot.read_text().startswith("<svg")


def test_other_traffic_takes_its_costs_from_a_trace(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    traffic = "synthetic:requests=20,rate=2,prompt=100,output=5"
    assert main(["replay", traffic, "--cost-from", trace, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["model_error"] is None
    assert document["settings"][0]["requests"] == 20
    assert main(["replay", traffic]) == 1
    assert "name a recorded trace with --cost-from" in capsys.readouterr().err


def test_advise_prints_flags_and_figures(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["advise", trace, "--itl-p99", "0.08", "--ttft-p99", "10"]) == 0
    flags, *rest = capsys.readouterr().out.splitlines()
    assert flags.startswith("--max-num-batched-tokens ")
    assert any("ITL p99 80 ms" in line and "below the limit" in line for line in rest)
    assert "Confidence:" in rest[-1]
    assert main(["advise", trace, "--itl-p50", "0.001", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["kept"] is False
    assert main(["advise", trace]) == 1
    assert "name at least one limit" in capsys.readouterr().err


def test_explain_and_export_read_a_trace(trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "5#0", "--trace", trace]) == 0
    assert capsys.readouterr().out.startswith("5#0: first token after")
    assert main(["explain", "nobody", "--trace", trace, "--json"]) == 1
    assert "has no request 'nobody'" in capsys.readouterr().err
    output = tmp_path / "out.json"
    assert main(["trace", "export", trace, "-o", str(output)]) == 0
    assert json.loads(output.read_text())["traceEvents"]
