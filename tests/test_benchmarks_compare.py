"""The everyday benchmarks beside the last kept run: what is marked, what is kept, and the exit status."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import compare, kv_utilisation, quality
from benchmarks.figures import Figure, read_figures, write_figures

samples = st.lists(st.floats(0.1, 1e3), min_size=1, max_size=6)


@given(samples, samples, st.booleans())
def test_a_mark_needs_samples_that_do_not_overlap(now: list[float], kept: list[float], more_is_better: bool) -> None:
    mark = compare.verdict(Figure("f", "ms", now, more_is_better), Figure("f", "ms", kept, more_is_better))
    all_more, all_less = min(now) > max(kept), max(now) < min(kept)
    assert bool(mark) == (all_more or all_less)
    if mark:
        assert (mark == "better") == (all_more == more_is_better)


@given(samples, samples)
def test_what_is_better_one_way_round_is_worse_the_other(now: list[float], kept: list[float]) -> None:
    opposite = {"better": "worse", "worse": "better", "": ""}
    one, other = Figure("f", "ms", now), Figure("f", "ms", kept)
    assert compare.verdict(one, other) == opposite[compare.verdict(other, one)]


def test_figures_are_read_as_they_were_written(tmp_path: Path) -> None:
    figures = [Figure("a", "ms", [1.0, 2.0]), Figure("b", "tok/s", [3.0], more_is_better=True)]
    write_figures(tmp_path / "f.json", figures, {"threads": 2})
    assert read_figures(tmp_path / "f.json") == figures


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """The command on figures that are given: its exit status and what it prints."""

    def run(figures: Sequence[Figure], *flags: str) -> tuple[int, str]:
        monkeypatch.setattr(compare, "measure", lambda names: list(figures))
        monkeypatch.setattr(sys, "argv", ["compare", "--results", str(tmp_path), *flags])
        return compare.main(), capsys.readouterr().out

    return run


def test_a_kept_run_is_what_later_ones_are_compared_with(run: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    figure = Figure("stream", "ms", [10.0, 11.0, 12.0])
    status, told = run([figure], "--keep")
    assert (status, "No result is kept" in told) == (0, True)
    (path,) = tmp_path.glob("*-bench-cpu.json")
    assert json.loads(path.read_text())["figures"][0]["samples"] == [10.0, 11.0, 12.0]

    status, told = run([Figure("stream", "ms", [20.0, 22.0, 24.0]), Figure("other", "ms", [1.0])])
    assert status == 0  # slower is no failure
    line = next(line for line in told.splitlines() if line.startswith("stream"))
    assert line.split() == ["stream", "ms", "22", "11", "2.00", "18.2%", "18.2%", "worse"]
    assert next(line for line in told.splitlines() if line.startswith("other")).split()[-2] == "new"
    assert [json.loads(each.read_text())["figures"] for each in tmp_path.glob("*.json")] == [
        [{"name": "stream", "unit": "ms", "samples": [10.0, 11.0, 12.0], "more_is_better": False}]
    ]


def test_noise_is_not_marked_and_what_is_missing_is_named(run: Callable[..., tuple[int, str]]) -> None:
    run([Figure("stream", "ms", [10.0, 11.0, 12.0]), Figure("gone", "ms", [1.0])], "--keep")
    _, told = run([Figure("stream", "ms", [11.5, 12.5, 13.5])])
    assert next(line for line in told.splitlines() if line.startswith("stream")).split()[-1] == "18.2%"
    assert next(line for line in told.splitlines() if line.startswith("gone")).endswith("was not measured")


def test_another_machine_is_named(run: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "machine", lambda: {"cpu": "one", "load": 0.5})
    run([], "--keep")
    monkeypatch.setattr(compare, "machine", lambda: {"cpu": "two", "load": 7.0})
    _, told = run([])
    assert [line for line in told.splitlines() if "another machine" in line] == [
        "  on another machine: cpu was 'one', is 'two'"
    ]


def test_a_benchmark_that_fails_is_the_exit_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(names: Sequence[str]) -> list[Figure]:
        raise subprocess.CalledProcessError(3, ["python", "-m", "benchmarks.engine"])

    monkeypatch.setattr(compare, "measure", fail)
    monkeypatch.setattr(sys, "argv", ["compare", "--results", str(tmp_path)])
    assert compare.main() == 1
    assert "benchmarks.engine ended with status 3" in capsys.readouterr().err


def test_each_benchmark_runs_in_a_process_of_its_own_and_hands_over_its_figures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    commands = []

    def process(command: list[str], cwd: Path, check: bool) -> None:
        commands.append(command[2])
        write_figures(Path(command[4]), [Figure(command[2], "ms", [1.0])])

    monkeypatch.setattr(compare.subprocess, "run", process)
    figures = compare.measure(["scheduler", "engine"])
    assert commands == ["benchmarks.scheduler", "benchmarks.engine"]
    assert [figure.name for figure in figures] == commands


def test_the_kv_memory_run_is_the_same_every_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = []
    for number in range(2):
        path = tmp_path / f"{number}.json"
        monkeypatch.setattr(sys, "argv", ["kv_utilisation", "--requests", "8", "--json", str(path)])
        kv_utilisation.main()
        written.append(read_figures(path))
    assert written[0] == written[1]
    assert [figure.unit for figure in written[0]] == ["%", "steps"]


# --- Quality ---


def test_perplexity_and_agreement_follow_from_the_scores() -> None:
    reference = quality.Scores([-1.0, -2.0, -3.0, -2.0], [5, 6, 7, 8])
    other = quality.Scores([-1.0, -1.0, -1.0, -1.0], [5, 6, 0, 8])
    found = quality.quality("other", other, reference)
    assert found.perplexity == pytest.approx(2.718281828459045)
    assert found.agreement == 0.75
    assert quality.quality("itself", reference, reference).agreement == 1.0
