"""The line of keys says what keys do now, and does it on a click."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from cudaprefill_tui.widgets.key_bar import KeyBar
from tests.tui.desktop_harness import Desktop, desktop


def bar(desk: Desktop) -> KeyBar:
    return desk.screen.query_one(KeyBar)


def words(desk: Desktop) -> list[str]:
    return [entry.words for entry in bar(desk).entries]


@pytest.mark.parametrize("columns", [40, 80, 120, 200])
def test_the_keys_that_fit_stand_whole_and_help_menu_and_quit_are_among_them(columns: int, tmp_path: Path) -> None:
    async def main() -> None:
        async with desktop(tmp_path, size=(columns, 30)) as desk:
            await desk.until(lambda: words(desk))
            line = bar(desk).render_line(0)
            assert line.cell_length == columns
            assert all(f"{entry.display} {entry.words}" in line.text for entry in bar(desk).entries)
            assert words(desk)[0] == "Help"
            assert words(desk)[-2:] == ["Menu", "Quit"]

    asyncio.run(main())


def test_it_follows_the_focus(tmp_path: Path) -> None:
    async def main() -> None:
        async with desktop(tmp_path) as desk:
            await desk.until(lambda: "Send" in words(desk))
            desk.screen.desk.show("steps")
            await desk.until(lambda: "Pause" in words(desk))
            assert "Send" not in words(desk)

    asyncio.run(main())


def test_stop_is_there_while_an_answer_is_written(tmp_path: Path) -> None:
    async def main() -> None:
        async with desktop(tmp_path) as desk:
            assert "Stop" not in words(desk)
            desk.link.gate.clear()
            await desk.type("hello")
            await desk.press("enter")
            await desk.until(lambda: "Stop" in words(desk))
            desk.link.gate.set()
            await desk.until(lambda: "Stop" not in words(desk))

    asyncio.run(main())


def test_a_click_does_what_the_key_does(tmp_path: Path) -> None:
    async def main() -> None:
        async with desktop(tmp_path) as desk:
            await desk.until(lambda: words(desk))
            await desk.pilot.click(KeyBar, offset=(2, 0))
            await desk.until(lambda: desk.dialog == "Help")

    asyncio.run(main())
