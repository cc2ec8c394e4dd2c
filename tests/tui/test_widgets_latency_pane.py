"""The latency pane: percentiles, target, histogram, throughput, queue and KV of the last seconds."""

from __future__ import annotations

import pytest
from textual.pilot import Pilot

from cudaprefill.client.engine_view import EngineView
from cudaprefill_tui.figures import milliseconds
from cudaprefill_tui.glyphs import ASCII, UNICODE
from cudaprefill_tui.widgets.latency_pane import LatencyPane
from tests.tui.pane_harness import Clock, PaneApp, busy_engine, play, text, title
from tests.tui.synthetic import SyntheticEngine


def view_of(itls: list[float], target: float | None = None) -> EngineView:
    """A view in which these ITLs ended a moment ago."""
    engine = SyntheticEngine()
    engine.settings.itl_target_ms = target
    view = EngineView(clock=Clock())
    view.apply(engine.snapshot())
    for itl in itls:
        view.itl.add(view.time, itl)
        view.ttft.add(view.time, itl * 10)
    return view


def test_percentiles_of_ttft_and_itl_are_written_with_their_units() -> None:
    view = view_of([n / 1e3 for n in range(1, 101)])
    pane = LatencyPane()

    async def scene(app: PaneApp, pilot: Pilot[None]) -> None:
        pane.update_view(view)
        await pilot.pause()
        ttft, itl = text(pane.figures).splitlines()[:2]
        for line, window in ((ttft, view.ttft), (itl, view.itl)):
            for percent in (50, 90, 99):
                value = window.counts(view.time, 60).percentile(percent)
                assert value is not None
                assert f"p{percent} {milliseconds(value):>8}" in line
            assert " 100 " in line

    play(pane, scene)


def test_what_exceeds_the_target_is_marked_in_figures_and_in_the_chart() -> None:
    pane = LatencyPane()

    async def scene(app: PaneApp, pilot: Pilot[None]) -> None:
        pane.update_view(view_of([0.010] * 99 + [0.2], target=50.0))
        await pilot.pause()
        shown = text(pane.figures)
        itl = shown.splitlines()[1]
        assert "!" not in itl.split("p99")[0]
        assert "50.0 ms" in shown
        assert UNICODE.target * 20 in shown
        pane.update_view(view_of([0.010] * 9 + [0.2], target=50.0))
        await pilot.pause()
        assert "!" in text(pane.figures).splitlines()[1].split("p99")[1]
        pane.update_view(view_of([0.2]))
        assert UNICODE.target not in text(pane.figures)
        assert "!" not in text(pane.figures)

    play(pane, scene)


def test_the_histogram_counts_every_gap_in_1_2_5_steps() -> None:
    pane = LatencyPane()

    async def scene(app: PaneApp, pilot: Pilot[None]) -> None:
        pane.update_view(view_of([0.003] * 7 + [0.015] * 30 + [0.080] * 2))
        await pilot.pause()
        lines = [line.split("<")[1].split() for line in text(pane.figures).splitlines() if "<" in line]
        counts = {f"{words[0]} {words[1]}": words[-1] for words in lines}
        assert counts["5.0 ms"] == "7"
        assert counts["20.0 ms"] == "30"
        assert counts["100 ms"] == "2"
        assert counts["10.0 ms"] == "ms"  # no bar, no count

    play(pane, scene)


def test_keys_change_the_window_and_what_the_chart_is_of() -> None:
    view = view_of([0.010])
    pane = LatencyPane()

    async def scene(app: PaneApp, pilot: Pilot[None]) -> None:
        pane.update_view(view)
        await pilot.pause()
        pane.figures.focus()
        assert "last 60 s" in title(pane)
        assert "ITL p99 of each second" in text(pane.figures)
        await pilot.press("w", "t")
        assert "last 300 s" in title(pane)
        assert "TTFT p99 of each second, the last 300 s" in text(pane.figures)
        await pilot.press("w")
        assert "last 10 s" in title(pane)

    play(pane, scene)


def test_throughput_queue_and_kv_use_are_those_of_the_engine() -> None:
    engine, view = busy_engine(300)
    pane = LatencyPane()

    async def scene(app: PaneApp, pilot: Pilot[None]) -> None:
        pane.update_view(view)
        await pilot.pause()
        output, prompt = view.history.rates(view.time)
        line = text(pane.figures).splitlines()[2]
        assert f"out {output:>6.0f} tok/s" in line
        assert f"prefill {prompt:>6.0f} tok/s" in line
        assert f"queue {view.num_waiting:>4}" in line
        pool = engine.pool()
        assert f"KV {pool.used / 96:4.0%}" in line

    play(pane, scene, size=(120, 16))


def test_figures_are_not_redrawn_faster_than_they_can_be_read() -> None:
    clock = Clock()
    view = EngineView(clock=clock)
    view.apply(SyntheticEngine().snapshot())
    view.itl.add(view.time, 0.01)
    view.ttft.add(view.time, 0.01)
    pane = LatencyPane()

    async def scene(app: PaneApp, pilot: Pilot[None]) -> None:
        pane.update_view(view)
        before = text(pane.figures)
        view.itl.add(view.time, 0.5)
        pane.update_view(view)
        assert text(pane.figures) == before
        clock.time += 0.6
        pane.update_view(view)
        assert text(pane.figures) != before

    play(pane, scene)


def test_without_tokens_it_says_what_to_do() -> None:
    pane = LatencyPane()

    async def scene(app: PaneApp, pilot: Pilot[None]) -> None:
        pane.update_view(EngineView())
        await pilot.pause()
        assert "No tokens yet" in text(pane.figures)

    play(pane, scene)


@pytest.mark.parametrize("size", [(1, 1), (10, 3), (30, 5), (40, 7), (52, 9), (78, 10), (120, 20), (200, 40)])
def test_lines_fit_any_size(size: tuple[int, int]) -> None:
    _, view = busy_engine()
    assert view.settings is not None
    view.settings.itl_target_ms = 10.0
    pane = LatencyPane(glyphs=ASCII)

    async def scene(app: PaneApp, pilot: Pilot[None]) -> None:
        pane.update_view(view)
        await pilot.pause()
        lines = text(pane.figures).splitlines()
        assert all(len(line) == pane.figures.size.width for line in lines)
        assert "".join(lines).isascii()

    play(pane, scene, size=size)
