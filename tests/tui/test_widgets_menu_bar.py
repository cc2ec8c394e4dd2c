"""The menu bar works by keys, by mnemonics and by the mouse, and gives the focus back."""

from __future__ import annotations

import pytest
from textual.pilot import Pilot
from textual.widget import Widget
from textual.widgets import Input

from cudaprefill_tui.messages import MenuChosen
from cudaprefill_tui.widgets.menu_bar import Menu, MenuBar, MenuItem, key_hint
from tests.tui.pane_harness import PaneApp, play, text


def bar() -> MenuBar:
    return MenuBar(
        [
            Menu("&File", [MenuItem("&Attach…", "attach"), None, MenuItem("&Quit", "quit", "ctrl+q")]),
            Menu(
                "&View",
                [
                    MenuItem("&Steps", "toggle('steps')", checked=True),
                    MenuItem("&Blocks", "toggle('blocks')", checked=False),
                    MenuItem("&Zoom", "zoom", "f4", enabled=False),
                ],
            ),
            Menu("&Help", [MenuItem("&Help", "help", "f1")]),
        ]
    )


def drop_down(menu_bar: MenuBar) -> Widget:
    return menu_bar.query("_DropDown").first()


def test_arrow_keys_and_enter_choose_an_entry() -> None:
    menu_bar = bar()

    async def scene(app: PaneApp, pilot: Pilot[None]) -> None:
        menu_bar.open()
        await pilot.press("down", "enter")
        assert app.take(MenuChosen) == [MenuChosen("quit")]
        assert menu_bar.opened is None
        menu_bar.open()
        await pilot.press("right", "down", "enter")
        assert app.take(MenuChosen) == [MenuChosen("toggle('blocks')")]
        menu_bar.open()
        await pilot.press("left", "space")
        assert app.take(MenuChosen) == [MenuChosen("help")]

    play(menu_bar, scene)


def test_the_cursor_passes_over_rules_and_goes_round() -> None:
    menu_bar = bar()

    async def scene(app: PaneApp, pilot: Pilot[None]) -> None:
        menu_bar.open()
        seen = []
        for key in ("down", "down", "up", "home", "end"):
            await pilot.press(key)
            assert menu_bar.item is not None
            seen.append(menu_bar.item.action)
        assert seen == ["quit", "attach", "quit", "attach", "quit"]

    play(menu_bar, scene)


def test_mnemonics_choose_in_the_open_menu_and_open_another() -> None:
    menu_bar = bar()

    async def scene(app: PaneApp, pilot: Pilot[None]) -> None:
        menu_bar.open()
        await pilot.press("v")
        assert menu_bar.opened == 1
        await pilot.press("b")
        assert app.take(MenuChosen) == [MenuChosen("toggle('blocks')")]
        assert menu_bar.open_mnemonic("h")
        assert menu_bar.opened == 2
        assert not menu_bar.open_mnemonic("y")

    play(menu_bar, scene)


def test_a_disabled_entry_is_not_chosen() -> None:
    menu_bar = bar()

    async def scene(app: PaneApp, pilot: Pilot[None]) -> None:
        menu_bar.open(1)
        await pilot.press("z", "end", "enter")
        assert app.take(MenuChosen) == []
        menu_bar.set_item("zoom", enabled=True)
        await pilot.press("enter")
        assert app.take(MenuChosen) == [MenuChosen("zoom")]

    play(menu_bar, scene)


def test_opening_again_and_escape_close_it_and_the_focus_goes_back() -> None:
    menu_bar, entry = bar(), Input()

    async def scene(app: PaneApp, pilot: Pilot[None]) -> None:
        entry.focus()
        await pilot.pause()
        for close in ("escape", None):
            menu_bar.open()
            await pilot.pause()
            assert menu_bar.has_focus
            if close:
                await pilot.press(close)
            else:
                menu_bar.open()
            await pilot.pause()
            assert menu_bar.opened is None
            assert not drop_down(menu_bar).display
            assert entry.has_focus
        menu_bar.open()
        await pilot.press("down", "enter")
        assert entry.has_focus

    play([menu_bar, entry], scene)


def test_losing_the_focus_closes_the_menu() -> None:
    menu_bar, entry = bar(), Input()

    async def scene(app: PaneApp, pilot: Pilot[None]) -> None:
        menu_bar.open()
        await pilot.pause()
        entry.focus()
        await pilot.pause()
        assert menu_bar.opened is None
        assert entry.has_focus

    play([menu_bar, entry], scene)


def test_the_mouse_opens_moves_and_chooses() -> None:
    menu_bar = bar()

    async def scene(app: PaneApp, pilot: Pilot[None]) -> None:
        await pilot.click(menu_bar, offset=(3, 0))
        assert menu_bar.opened == 0
        await pilot.hover(menu_bar, offset=(10, 0))
        assert menu_bar.opened == 1
        await pilot.click(drop_down(menu_bar), offset=(5, 2))
        assert app.take(MenuChosen) == [MenuChosen("toggle('blocks')")]
        await pilot.click(menu_bar, offset=(3, 0))
        await pilot.click(menu_bar, offset=(3, 0))
        assert menu_bar.opened is None
        await pilot.click(menu_bar, offset=(3, 0))
        await pilot.click(drop_down(menu_bar), offset=(5, 2))  # a rule
        assert menu_bar.opened == 0
        assert app.take(MenuChosen) == []

    play(menu_bar, scene)


def test_entries_show_their_key_and_whether_they_are_checked() -> None:
    menu_bar = bar()

    async def scene(app: PaneApp, pilot: Pilot[None]) -> None:
        menu_bar.open(1)
        await pilot.pause()
        lines = text(drop_down(menu_bar)).splitlines()
        assert [line[1] for line in lines[:3]] == ["✓", " ", " "]
        assert lines[2].rstrip().endswith("F4")
        menu_bar.set_item("toggle('steps')", checked=False)
        assert text(drop_down(menu_bar)).splitlines()[0][1] == " "

    play(menu_bar, scene)


def test_the_status_is_plain_text_at_the_right_end_and_gives_way() -> None:
    menu_bar = bar()

    async def scene(app: PaneApp, pilot: Pilot[None]) -> None:
        menu_bar.show_status("[bold model[/] · ● live\x1b[2J")
        assert text(menu_bar).endswith("[bold model[/] · ● live�[2J ")
        await pilot.resize_terminal(24, 10)
        await pilot.pause()
        assert text(menu_bar).startswith("  File  View  Help")
        assert len(text(menu_bar)) == 24

    play(menu_bar, scene)


@pytest.mark.parametrize(
    ("key", "hint"), [("ctrl+s", "^S"), ("f10", "F10"), ("ctrl+pagedown", "^PgDn"), ("escape", "Esc"), ("", "")]
)
def test_keys_are_written_short(key: str, hint: str) -> None:
    assert key_hint(key) == hint
