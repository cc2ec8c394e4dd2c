"""What is left out of the output makes no difference to the terminal."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual.app import ComposeResult
from textual.drivers.headless_driver import HeadlessDriver
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Input, Static

from cudaprefill_tui.sparse_output import SparseApp
from cudaprefill_tui.strip_cells import cells_of, changed_runs, runs_of
from cudaprefill_tui.widgets.blocks_pane import BlocksPane
from cudaprefill_tui.widgets.line_view import LineView
from cudaprefill_tui.widgets.pane import Pane
from cudaprefill_tui.widgets.requests_pane import RequestsPane
from cudaprefill_tui.widgets.splitter import Split
from cudaprefill_tui.widgets.steps_pane import StepsPane
from tests.tui.pane_harness import busy_engine

WIDTH, HEIGHT = 90, 24
TEXTS = st.text(st.sampled_from("abc d·█日本🚀é"), max_size=12)
STYLES = st.sampled_from([Style(color="red"), Style(color="blue", bold=True), Style(reverse=True)])
STRIPS = st.lists(st.tuples(TEXTS, STYLES), max_size=6).map(lambda parts: Strip([Segment(t, s) for t, s in parts]))


@given(STRIPS)
def test_a_strip_survives_being_taken_apart(strip: Strip) -> None:
    cells = cells_of(strip)
    assert cells is not None
    assert len(cells) == strip.cell_length
    again = Strip([Segment(text, style) for text, style in runs_of(cells)])
    assert again.text == strip.text
    assert cells_of(again) == cells


@given(STRIPS, STRIPS, st.integers(0, 8))
def test_redrawing_the_changed_runs_makes_one_row_the_other(before: Strip, after: Strip, close: int) -> None:
    width = min(before.cell_length, after.cell_length)
    old, new = cells_of(before.crop(0, width)), cells_of(after.crop(0, width))
    assert old is not None
    assert new is not None
    row, drawn = list(old), 0
    for start, end in changed_runs(old, new, close):
        assert new[start][0] != ""
        row[start:end] = new[start:end]
        drawn += 1
    assert row == new
    assert (drawn == 0) == (old == new)


def test_a_sequence_that_terminals_join_is_not_taken_apart() -> None:
    family = Strip([Segment("👩\u200d👩\u200d👧")])
    assert family.cell_length == 2
    assert cells_of(family) is None


class Terminal:
    """Enough of a terminal for what Textual writes: a cell is a character and how it was coloured."""

    def __init__(self) -> None:
        self.cells: dict[tuple[int, int], tuple[str, str]] = {}
        self._x = self._y = 0
        self._style = ""

    def feed(self, data: str) -> None:
        for control, argument, letter, text in re.findall(r"(\x1b\[([?\d;]*)([A-Za-z]))|([^\x1b]+)", data):
            if not control:
                for character in text:
                    self._put(character)
            elif letter == "H":
                self._y, self._x = (int(number) - 1 for number in argument.split(";"))
            elif letter == "m":
                self._style = "" if argument in ("", "0") else argument

    def _put(self, character: str) -> None:
        if character == "\n":
            return
        for part in range(cell_len(character)):
            if self._x < WIDTH:
                self.cells[self._x, self._y] = (character if part == 0 else "", self._style)
            self._x += 1


class RecordingDriver(HeadlessDriver):
    terminal = Terminal()
    num_bytes = 0

    @property
    def is_headless(self) -> bool:
        return False

    def write(self, data: str) -> None:
        RecordingDriver.terminal.feed(data)
        RecordingDriver.num_bytes += len(data.encode())


class Stage(SparseApp[None]):
    def __init__(self, widgets: Callable[[], list[Widget]], play: Callable[[Stage], object]) -> None:
        super().__init__()
        self.driver_class = RecordingDriver
        self._widgets, self._play = widgets, play

    def compose(self) -> ComposeResult:
        yield from self._widgets()

    def on_mount(self) -> None:
        self.call_after_refresh(self.run_worker, self._run)

    async def _run(self) -> None:
        await self._play(self)  # type: ignore[misc]
        await asyncio.sleep(0.2)
        self.shown = dict(RecordingDriver.terminal.cells)
        RecordingDriver.terminal = Terminal()
        self.refresh(layout=True)  # all of it, from scratch
        await asyncio.sleep(0.3)
        self.expected = dict(RecordingDriver.terminal.cells)
        self.exit()


def run(widgets: Callable[[], list[Widget]], play: Callable[[Stage], object]) -> Stage:
    RecordingDriver.terminal = Terminal()
    stage = Stage(widgets, play)
    asyncio.run(stage.run_async(size=(WIDTH, HEIGHT)))
    return stage


def test_after_many_updates_the_terminal_shows_what_a_full_redraw_would() -> None:
    engine, view = busy_engine(10)
    choose = random.Random(3)

    async def play(stage: Stage) -> None:
        panes = list(stage.query(Pane))
        for turn in range(40):
            if turn % 3 == 0:
                engine.submit(choose.randint(10, 400), 9, document=turn % 2, id=f"日本 {turn} 🚀")
            engine.step()
            view.apply(engine.update())
            for pane in panes:
                pane.update_view(view)
                pane.highlight(choose.choice([None, *engine.requests]))
            if turn == 20:
                stage.query_one(Split).fraction = 0.3
            await asyncio.sleep(0.02)

    stage = run(lambda: [Split(StepsPane(), RequestsPane())], play)
    assert len(stage.expected) == WIDTH * HEIGHT
    assert stage.shown == stage.expected


@pytest.mark.parametrize("hidden_at_the_end", [False, True])
def test_what_lies_over_panes_that_change_covers_just_its_own_cells(hidden_at_the_end: bool) -> None:
    engine, view = busy_engine(10)
    cover = Static("\n".join("over" * 5 for _ in range(4)))
    cover.styles.overlay, cover.styles.width, cover.styles.height = "screen", 20, 4

    async def play(stage: Stage) -> None:
        panes = list(stage.query(Pane))
        for lines in stage.query(LineView):  # a thumb is drawn by whole cells, but finer with a new layout
            lines.styles.scrollbar_size_vertical = 0
        for turn in range(24):
            engine.step()
            view.apply(engine.update())
            for pane in panes:
                pane.update_view(view)
            if turn % 6 == 0:
                cover.styles.offset = (35 + turn, -20 + turn // 3)
            await asyncio.sleep(0.02)
        if hidden_at_the_end:
            cover.display = False

    stage = run(lambda: [Split(StepsPane(), BlocksPane()), cover], play)
    shown = "".join(stage.shown[x, y][0] for y in range(HEIGHT) for x in range(WIDTH))
    assert ("overover" in shown) != hidden_at_the_end
    assert stage.shown == stage.expected


def test_wide_characters_that_come_and_go_leave_nothing_behind() -> None:
    async def play(stage: Stage) -> None:
        entry, line = stage.query_one(Input), stage.query_one(Static)
        entry.cursor_blink = False
        for text in ("日本語 text", "a日本b", "ab", "🚀🚀 x", "x 🚀", "👩\u200d👩\u200d👧 family", "é́ combined", ""):
            entry.value = text
            line.update(text + "|")
            await asyncio.sleep(0.05)

    stage = run(lambda: [Input(), Static()], play)
    assert stage.shown == stage.expected


def test_a_digit_that_changes_costs_little_more_than_itself() -> None:
    async def play(stage: Stage) -> None:
        line = stage.query_one(Static)
        await asyncio.sleep(0.1)
        before = RecordingDriver.num_bytes
        for number in range(10):
            line.update("word " * 15 + str(number))
            await asyncio.sleep(0.05)
        stage.cost = RecordingDriver.num_bytes - before  # type: ignore[attr-defined]

    stage = run(lambda: [Static("word " * 15)], play)
    assert stage.cost < 10 * 110  # type: ignore[attr-defined]
