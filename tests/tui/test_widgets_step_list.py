"""The step list follows its end only while it is there, and a row says how the token budget was spent."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.pilot import Pilot

from cudaprefill.client.engine_view import EngineView, StepView
from cudaprefill.protocol.telemetry import StepRecord
from cudaprefill_tui.glyphs import UNICODE
from cudaprefill_tui.messages import RequestHovered, StepSelected
from cudaprefill_tui.step_bar import bar_parts, fill_places, share_cells
from cudaprefill_tui.widgets.step_list import NUMBER, StepList
from cudaprefill_tui.widgets.steps_pane import StepsPane
from tests.tui.pane_harness import Clock, PaneApp, busy_engine, play, text, title
from tests.tui.synthetic import SyntheticEngine


def numbers(list: StepList) -> list[int]:
    """Step numbers of the visible rows."""
    return [int(line[1:NUMBER]) for line in text(list).splitlines() if line[1:NUMBER].strip()]


def run(engine: SyntheticEngine, view: EngineView, pane: StepsPane, steps: int) -> None:
    for _ in range(steps):
        if len(engine.requests) < 3:
            engine.submit(60, 30)
        engine.step()
        view.apply(engine.update())
        pane.update_view(view)


def step(**fields: object) -> StepView:
    values: dict[str, object] = {
        "number": 1,
        "start": 0.0,
        "duration": 0.01,
        "token_budget": 100,
        "num_decodes": 0,
        "joined": [],
        "left": [],
        "chunks": [],
        "preempted": [],
        "num_waiting": 0,
        "waiting_for": "",
        "blocks_taken": 0,
        "blocks_freed": 0,
        "blocks_evicted": 0,
    }
    return StepView(StepRecord(**(values | fields)), frozenset())  # type: ignore[arg-type]


# --- The bar ---


@given(st.lists(st.integers(0, 500), max_size=12), st.integers(0, 500), st.integers(0, 120))
def test_shares_are_in_order_and_proportional_to_a_cell(amounts: list[int], rest: int, width: int) -> None:
    total = max(sum(amounts) + rest, 1)
    cells = share_cells(amounts, total, width)
    assert len(cells) == len(amounts)
    assert sum(cells) <= width
    present = sum(amount > 0 for amount in amounts)
    for place in range(len(amounts)):
        exact = sum(amounts[: place + 1]) * width / total
        assert exact - 0.5 <= sum(cells[: place + 1]) <= exact + 0.5 + present or sum(cells[: place + 1]) == width


@given(st.lists(st.integers(1, 500), max_size=12), st.integers(12, 60))
def test_what_got_a_token_is_seen_while_there_are_cells(amounts: list[int], width: int) -> None:
    cells = share_cells(amounts, max(sum(amounts), 1), width)
    left = width
    for share in cells:
        assert share > 0 or left == 0
        left -= share


@given(st.lists(st.integers(0, 30), max_size=20), st.integers(2, 5))
def test_neighbouring_chunks_differ_in_their_fill(requests: list[int], fills: int) -> None:
    places = fill_places(requests, fills)
    assert all(a != b for a, b in itertools.pairwise(places))
    assert all(0 <= place < fills for place in places)


def test_the_bar_has_decodes_first_then_chunks_then_what_was_left() -> None:
    parts = bar_parts(step(num_decodes=10, chunks=[(7, 0, 40, 0), (8, 16, 25, 16)]), 20)
    assert [(part.kind, part.cells, part.number) for part in parts] == [
        ("decode", 2, -1),
        ("chunk", 8, 7),
        ("chunk", 5, 8),
        ("unused", 5, -1),
    ]


def test_a_bar_of_senseless_numbers_has_its_width() -> None:
    strange = step(num_decodes=-5, token_budget=-1, chunks=[(1, 0, -7, 0), (2, 0, 10**12, 0)])
    assert sum(part.cells for part in bar_parts(strange, 30)) == 30


# --- Rows ---


def test_a_row_tells_number_bar_tokens_duration_and_who_waits_for_what() -> None:
    _, view = busy_engine()
    pane = StepsPane()

    async def scene(app: PaneApp, pilot: Pilot[None]) -> None:
        pane.update_view(view)
        await pilot.pause()
        last = view.steps[-1]
        line = text(pane.list).splitlines()[-1]
        assert f" {last.record.number} " in line
        assert f" {last.num_tokens} " in line
        assert f" {last.record.duration * 1e3:.1f} ms" in line
        assert f"wait {last.record.num_waiting}" in line
        assert last.record.waiting_for in line
        assert UNICODE.decode in line
        budget = last.record.token_budget
        assert title(pane) == f"Steps ─ budget {budget}"

    play(pane, scene, size=(120, 20))


def test_a_step_over_the_target_is_marked_where_it_made_streams_wait() -> None:
    engine = SyntheticEngine()
    engine.settings.itl_target_ms = 10.0
    view, pane = EngineView(clock=Clock()), StepsPane()
    view.apply(engine.snapshot())

    async def scene(app: PaneApp, pilot: Pilot[None]) -> None:
        engine.submit(16, 30)
        run(engine, view, pane, 1)
        engine.submit(400, 4)
        run(engine, view, pane, 9)
        await pilot.pause()
        lines = text(pane.list).splitlines()[: len(view.steps)]
        late = [s.record.duration > 0.010 and bool(s.decodes) for s in view.steps]
        assert ["!" in line for line in lines] == late
        assert any(late)

    play(pane, scene)


@pytest.mark.parametrize("width", [1, 8, 20, 40, 60, 80, 200])
def test_rows_have_one_width_whatever_it_is(width: int) -> None:
    _, view = busy_engine()
    pane = StepsPane()

    async def scene(app: PaneApp, pilot: Pilot[None]) -> None:
        pane.update_view(view)
        await pilot.pause()
        assert {pane.list.line(y).cell_length for y in range(pane.list.num_lines)} == {pane.list.room}

    play(pane, scene, size=(width, 12))


# --- Following and scrolling ---


def test_the_newest_step_is_in_sight_until_one_scrolls_back_and_again_after_end() -> None:
    engine, view, pane = SyntheticEngine(), EngineView(clock=Clock()), StepsPane()
    view.apply(engine.snapshot())

    async def scene(app: PaneApp, pilot: Pilot[None]) -> None:
        run(engine, view, pane, 60)
        await pilot.pause()
        assert numbers(pane.list)[-1] == 60
        pane.list.focus()
        await pilot.press("pageup", "pageup")
        seen = numbers(pane.list)
        run(engine, view, pane, 50)
        await pilot.pause()
        assert numbers(pane.list) == seen
        assert "End follows" in title(pane)
        await pilot.press("end")
        assert numbers(pane.list)[-1] == 110
        run(engine, view, pane, 1)
        await pilot.pause()
        assert numbers(pane.list)[-1] == 111
        assert "End follows" not in title(pane)

    play(pane, scene)


def test_the_thumb_of_the_scrollbar_is_where_the_view_is() -> None:
    """Within a cell, and without being drawn for every step."""
    engine, view, pane = SyntheticEngine(), EngineView(clock=Clock()), StepsPane()
    view.apply(engine.snapshot())

    async def scene(app: PaneApp, pilot: Pilot[None]) -> None:
        steps, bar, places = pane.list, pane.list.vertical_scrollbar, set()

        def is_there() -> bool:
            height = steps.size.height
            end = (bar.position + height) / bar.window_virtual_size - (steps.scroll_y + height) / steps.num_lines
            return abs(end * height) <= 1

        run(engine, view, pane, 20)
        for _ in range(25):
            run(engine, view, pane, 8)
            await pilot.pause()
            assert is_there()
            places.add(bar.position)
        assert len(places) < 20
        steps.scroll_to_line(50)
        await pilot.pause()
        assert is_there()

    play(pane, scene)


def test_scrolling_by_the_wheel_stops_following_too() -> None:
    engine, view, pane = SyntheticEngine(), EngineView(clock=Clock()), StepsPane()
    view.apply(engine.snapshot())

    async def scene(app: PaneApp, pilot: Pilot[None]) -> None:
        run(engine, view, pane, 60)
        await pilot.pause()
        pane.list.scroll_to_line(10)
        await pilot.pause()
        assert numbers(pane.list)[0] == 11
        run(engine, view, pane, 20)
        assert numbers(pane.list)[0] == 11

    play(pane, scene)


def test_the_view_stays_on_its_steps_when_the_history_forgets_old_ones() -> None:
    engine, view, pane = SyntheticEngine(), EngineView(clock=Clock(), max_steps=100), StepsPane()
    view.apply(engine.snapshot())

    async def scene(app: PaneApp, pilot: Pilot[None]) -> None:
        run(engine, view, pane, 100)
        await pilot.pause()
        pane.list.scroll_to_line(50)
        seen = numbers(pane.list)
        run(engine, view, pane, 30)
        assert numbers(pane.list) == seen
        run(engine, view, pane, 60)
        assert numbers(pane.list)[0] == view.steps[0].record.number

    play(pane, scene)


def test_pause_holds_the_rows_while_steps_go_on() -> None:
    engine, view, pane = SyntheticEngine(), EngineView(clock=Clock()), StepsPane()
    view.apply(engine.snapshot())

    async def scene(app: PaneApp, pilot: Pilot[None]) -> None:
        run(engine, view, pane, 30)
        await pilot.pause()
        pane.list.focus()
        await pilot.press("space")
        seen = numbers(pane.list)
        run(engine, view, pane, 30)
        await pilot.pause()
        assert numbers(pane.list) == seen
        assert "paused" in title(pane)
        await pilot.press("space")
        assert numbers(pane.list)[-1] == 60

    play(pane, scene)


# --- Choosing ---


def test_a_step_is_chosen_by_keys_and_by_a_click() -> None:
    _, view = busy_engine()
    pane = StepsPane()

    async def scene(app: PaneApp, pilot: Pilot[None]) -> None:
        pane.update_view(view)
        await pilot.pause()
        pane.list.focus()
        last = view.steps[-1].record.number
        await pilot.press("up", "up", "enter")
        assert app.take(StepSelected) == [StepSelected(last - 1)]
        assert UNICODE.cursor in text(pane.list).splitlines()[-2]
        first = numbers(pane.list)[0]
        await pilot.click(pane.list, offset=(3, 2))
        assert app.take(StepSelected) == [StepSelected(first + 2)]
        await pilot.press("end", "enter")
        assert app.take(StepSelected) == [StepSelected(last)]

    play(pane, scene)


def test_jumping_to_a_step_shows_it_and_an_unknown_one_is_refused() -> None:
    _, view = busy_engine()
    pane = StepsPane()

    async def scene(app: PaneApp, pilot: Pilot[None]) -> None:
        pane.update_view(view)
        await pilot.pause()
        assert pane.jump_to(7)
        assert 7 in numbers(pane.list)
        assert pane.list.cursor == 7
        assert not pane.jump_to(10_000)
        assert pane.list.cursor == 7

    play(pane, scene)


def test_pointing_at_a_chunk_points_at_its_request() -> None:
    engine, view, pane = SyntheticEngine(), EngineView(clock=Clock()), StepsPane()
    view.apply(engine.snapshot())
    first, second = engine.submit(300, 4), engine.submit(300, 4)

    async def scene(app: PaneApp, pilot: Pilot[None]) -> None:
        run(engine, view, pane, 1)
        await pilot.pause()
        parts = bar_parts(view.steps[0], pane.list._widths()[0])
        assert [part.number for part in parts[:2]] == [first, second]
        await pilot.hover(pane.list, offset=(NUMBER + 2 + parts[0].cells, 0))
        assert app.take(RequestHovered) == [RequestHovered(second)]
        await pilot.hover(pane.list, offset=(2, 0))
        assert app.take(RequestHovered) == [RequestHovered(None)]

    play(pane, scene)


def test_without_steps_the_list_says_what_to_do() -> None:
    pane = StepsPane()

    async def scene(app: PaneApp, pilot: Pilot[None]) -> None:
        pane.update_view(EngineView())
        pane.list.focus()
        await pilot.press("up", "home", "pagedown", "enter", "space", "end")
        assert "No steps yet" in text(pane.list)
        assert app.take(StepSelected) == []

    play(pane, scene)


def test_another_engine_begins_another_list() -> None:
    _, view = busy_engine()
    pane = StepsPane()

    async def scene(app: PaneApp, pilot: Pilot[None]) -> None:
        pane.update_view(view)
        pane.list.focus()
        await pilot.press("up", "up", "space")
        view.apply(SyntheticEngine().snapshot("restarted"))
        pane.update_view(view)
        await pilot.pause()
        assert "No steps yet" in text(pane.list)
        assert pane.list.cursor is None

    play(pane, scene)


def test_another_size_does_not_end_the_following() -> None:
    engine, view = busy_engine()
    pane = StepsPane()

    async def scene(app: PaneApp, pilot: Pilot[None]) -> None:
        pane.update_view(view)
        await pilot.pause()
        for rows in (8, 30, 6, 20):
            await pilot.resize_terminal(120, rows)
            for _ in range(3):  # steps go on while the screen is laid out anew
                engine.step()
                view.apply(engine.update())
                pane.update_view(view)
                assert pane.list.following
                await pilot.pause()
            assert f" {view.steps[-1].record.number} " in text(pane.list).splitlines()[-1]
            assert "scrolled back" not in title(pane)

    play(pane, scene, size=(120, 20))
