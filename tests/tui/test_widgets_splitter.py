"""A split shares its place between two widgets and lets the divider be moved."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.geometry import Size
from textual.pilot import Pilot
from textual.widgets import Static

from cudaprefill_tui.messages import SplitMoved
from cudaprefill_tui.widgets.splitter import Split
from tests.tui.pane_harness import PaneApp, play, until


def split(**fields: object) -> Split:
    return Split(Static("first"), Static("second"), **fields)  # type: ignore[arg-type]


@given(st.floats(0, 1), st.integers(0, 300), st.integers(1, 40), st.integers(1, 40))
def test_the_children_fill_the_split_and_keep_their_least_sizes(
    fraction: float, width: int, min_first: int, min_second: int
) -> None:
    part = split(fraction=fraction, min_first=min_first, min_second=min_second)
    first, second = part.cells(Size(width, 10))
    if second == 0:
        assert first == width < min_first + min_second + 1
    else:
        assert first + 1 + second == width
        assert first >= min_first
        assert second >= min_second


@pytest.mark.parametrize("direction", ["horizontal", "vertical"])
def test_children_lie_beside_or_above_each_other(direction: str) -> None:
    part = split(direction=direction, fraction=0.4, min_first=3, min_second=3)

    async def scene(app: PaneApp, pilot: Pilot[None]) -> None:
        if direction == "horizontal":
            assert part.first.region == (0, 0, 40, 20)
            assert part.divider.region == (40, 0, 1, 20)
            assert part.second.region == (41, 0, 60, 20)
        else:
            assert part.first.region == (0, 0, 101, 8)
            assert part.second.region == (0, 8, 101, 12)
            assert part.divider.region.y == 8
            assert part.divider.region.height == 1

    play(part, scene, size=(101, 20))


@pytest.mark.parametrize(("direction", "to", "cells"), [("horizontal", (60, 5), 60), ("vertical", (50, 12), 12)])
def test_the_divider_is_dragged_and_tells_where_it_came_to_rest(
    direction: str, to: tuple[int, int], cells: int
) -> None:
    part = split(direction=direction, fraction=0.5, min_first=4, min_second=4, id="main")

    async def scene(app: PaneApp, pilot: Pilot[None]) -> None:
        handle = part.divider.region.offset
        along = 0 if direction == "horizontal" else 1
        start = handle[along]
        move = (to[0], handle.y) if along == 0 else (handle.x, to[1])
        await pilot.mouse_down(offset=handle)
        await pilot.hover(offset=move)
        assert app.take(SplitMoved) == []
        await pilot.mouse_up(offset=move)
        assert part.cells(part.size)[0] == cells != start
        await until(pilot, lambda: part.first.region.size[along] == cells)
        assert app.take(SplitMoved) == [SplitMoved("main", part.fraction)]

    play(part, scene, size=(101, 20))


def test_the_divider_goes_no_further_than_the_least_sizes() -> None:
    part = split(min_first=20, min_second=30)

    async def scene(app: PaneApp, pilot: Pilot[None]) -> None:
        part.move_to(-5)
        assert part.cells(part.size) == (20, 80)
        part.move_to(1000)
        assert part.cells(part.size) == (70, 30)

    play(part, scene, size=(101, 20))


def test_arrow_keys_move_the_divider_and_home_puts_it_back() -> None:
    part = split(fraction=0.5)

    async def scene(app: PaneApp, pilot: Pilot[None]) -> None:
        part.divider.focus()
        await pilot.press("right", "right", "shift+right", "left")
        assert part.cells(part.size)[0] == 50 + 6
        assert app.take(SplitMoved)[-1] == SplitMoved(None, part.fraction)
        await pilot.press("home")
        assert part.fraction == 0.5

    play(part, scene, size=(101, 20))


def test_a_child_that_is_not_displayed_leaves_all_to_the_other() -> None:
    part = split()

    async def scene(app: PaneApp, pilot: Pilot[None]) -> None:
        part.first.display = False
        await until(pilot, lambda: part.second.region.size == (101, 20))
        part.first.display, part.second.display = True, False
        await until(pilot, lambda: part.first.region.size == (101, 20))
        part.second.display = True
        await until(pilot, lambda: part.first.region.width == 50 and part.divider.region.width == 1)

    play(part, scene, size=(101, 20))


def test_where_both_do_not_fit_the_first_has_all_and_the_fraction_is_remembered() -> None:
    part = split(fraction=0.3, min_first=20, min_second=20)

    async def scene(app: PaneApp, pilot: Pilot[None]) -> None:
        await pilot.resize_terminal(30, 10)
        await until(pilot, lambda: part.first.region.width == 30)
        await pilot.resize_terminal(101, 20)
        await until(pilot, lambda: (part.first.region.width, part.second.region.width) == (30, 70))
        part.direction = "vertical"
        part.min_first = part.min_second = 3
        await until(pilot, lambda: part.first.region.size == (101, 6))

    play(part, scene, size=(101, 20))


def test_splits_nest() -> None:
    inner = split(direction="vertical", fraction=0.25, min_first=2, min_second=2)
    outer = Split(inner, Static("right"), fraction=0.6)

    async def scene(app: PaneApp, pilot: Pilot[None]) -> None:
        assert inner.region == (0, 0, 60, 20)
        assert inner.first.region == (0, 0, 60, 5)
        outer.fraction = 0.3
        await until(pilot, lambda: inner.second.region == (0, 5, 30, 15))

    play(outer, scene, size=(101, 20))
