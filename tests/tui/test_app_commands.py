"""Every command does what it says by each of its keys, by its menu entry and by the palette.

A command that is added without a case here fails the first test.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from textual.command import CommandList, CommandPalette
from textual.widgets import Input, TabPane

from cudaprefill_tui.commands import CommandProvider
from cudaprefill_tui.keymap import COMMANDS, MENUS, Command, bindings
from cudaprefill_tui.playback import PlaybackLink
from cudaprefill_tui.recording import Recorder, read_recording
from tests.tui.desktop_harness import Desktop, desktop
from tests.tui.fake_link import FakeLink, snapshot

SMALL = (80, 24)  # a desktop all the same
BY_ID = {command.id: command for command in COMMANDS}


@dataclass(frozen=True)
class Case:
    """check: holds after the command, and not before it."""

    check: Callable[[Desktop], object]
    prepare: Callable[[Desktop], Awaitable[None]] | None = None
    after: Callable[[Desktop], Awaitable[None]] | None = None  # between the command and the check


async def answered(desk: Desktop) -> None:
    await desk.ask("hello")


async def being_answered(desk: Desktop) -> None:
    desk.link.gate.clear()
    await desk.type("hello")
    await desk.press("enter")
    await desk.until(lambda: desk.conversation.live_answer)


async def two_conversations(desk: Desktop) -> None:
    await desk.screen.chat.new_conversation()
    await desk.until(lambda: desk.view is desk.screen.chat.views[1])


async def two_servers(desk: Desktop) -> None:
    desk.screen.attach("http://127.0.0.1:9000", None)
    desk.screen.session.place = 0


async def loaded(desk: Desktop) -> None:
    desk.screen.action_start_load("chat")
    assert desk.screen.session.generator.is_running


async def accept_another_server(desk: Desktop) -> None:
    await desk.until(lambda: desk.dialog)
    desk.app.screen.query_one("#field-url", Input).value = "http://127.0.0.1:9000"
    await accept(desk)


async def accept(desk: Desktop) -> None:
    await desk.until(lambda: desk.dialog)
    await desk.pilot.click("#accept")
    await desk.pilot.pause()


def is_shown(name: str) -> Callable[[Desktop], object]:
    return lambda desk: name not in desk.screen.desk.hidden


def is_hidden(name: str) -> Callable[[Desktop], object]:
    return lambda desk: name in desk.screen.desk.hidden


def changed_settings(desk: Desktop) -> object:
    return any(call[0] == "change_settings" for call in desk.link.calls)


def loads(name: str) -> Case:
    return Case(
        lambda desk: (
            desk.screen.session.generator.plan is not None
            and desk.screen.session.generator.plan.scenario == name
            and desk.screen.session.generator.is_running
        )
    )


CASES = {
    "file.attach": Case(lambda desk: len(desk.screen.session.links) == 2, after=accept_another_server),
    "file.next_server": Case(lambda desk: desk.link.url == "http://127.0.0.1:9000", two_servers),
    "file.export": Case(lambda desk: desk.dialog == "Export the conversation", answered),
    "file.quit": Case(lambda desk: desk.app._exit),
    "chat.new": Case(lambda desk: len(desk.screen.chat.views) == 2),
    "chat.close": Case(lambda desk: len(desk.screen.chat.views) == 1, two_conversations),
    "chat.next": Case(lambda desk: desk.view is desk.screen.chat.views[0], two_conversations),
    "chat.previous": Case(lambda desk: desk.view is desk.screen.chat.views[0], two_conversations),
    "chat.settings": Case(lambda desk: desk.dialog == "Settings of this conversation"),
    "chat.stop": Case(lambda desk: desk.conversation.turns[0].answer.state == "stopped", being_answered),
    "chat.regenerate": Case(lambda desk: len(desk.link.asked) == 2, answered),
    "chat.edit": Case(lambda desk: desk.view.composer.text == "hello" and desk.conversation.turns, answered),
    "chat.copy": Case(lambda desk: any("answer (14 characters)" in toast for toast in desk.toasts), answered),
    "view.next_pane": Case(lambda desk: desk.screen.desk.current == "steps"),
    "view.previous_pane": Case(lambda desk: desk.screen.desk.current == "load"),
    "view.zoom": Case(lambda desk: not desk.screen.desk.panes["steps"].display),
    "view.chat": Case(is_hidden("chat")),
    "view.steps": Case(is_hidden("steps")),
    "view.blocks": Case(is_hidden("blocks")),
    "view.requests": Case(is_hidden("requests")),
    "view.latency": Case(is_hidden("latency")),
    "view.reset": Case(is_shown("steps"), lambda desk: desk.screen.run_action("toggle_pane('steps')")),  # type: ignore[arg-type]
    "view.theme": Case(lambda desk: desk.app.theme == "cudaprefill-light"),
    "engine.settings": Case(lambda desk: desk.screen.desk.current == "engine"),
    "engine.rag": Case(changed_settings),
    "engine.code": Case(changed_settings),
    "engine.chat": Case(changed_settings),
    "engine.reset_cache": Case(lambda desk: ("reset_prefix_cache",) in desk.link.calls, after=accept),
    "load.open": Case(lambda desk: desk.screen.desk.current == "load"),
    "load.chat": loads("chat"),
    "load.document": loads("document"),
    "load.prefix": loads("prefix"),
    "load.bursts": loads("bursts"),
    "load.stop": Case(lambda desk: not desk.screen.session.generator.is_running, loaded),
    "help.help": Case(lambda desk: desk.dialog == "Help"),
    "help.explain": Case(lambda desk: desk.dialog == "Where the time of r1 went", answered),
    "help.palette": Case(lambda desk: isinstance(desk.app.screen, CommandPalette)),
    "help.menu": Case(lambda desk: desk.screen.menu_bar.opened is not None),
    "help.about": Case(lambda desk: desk.dialog.startswith("cudaprefill")),
}
NOT_RECORDED = ("menu", "app.command_palette", "app.quit")  # they belong to Textual, or the test needs them
PLAY_CASES = {
    "play.pause": lambda link: link.paused,
    "play.slower": lambda link: "at 0.5x" in link.state_words,
    "play.faster": lambda link: "at 2x" in link.state_words,
}


def test_every_command_has_a_case() -> None:
    assert set(CASES) | set(PLAY_CASES) == set(BY_ID)
    assert not set(CASES) & set(PLAY_CASES)


def test_keys_ids_and_mnemonics_name_one_thing_each() -> None:
    keys = [key for command in COMMANDS for key in command.keys.split(",") if key]
    assert len(keys) == len(set(keys))
    assert len(BY_ID) == len(COMMANDS)
    assert {binding.id for binding in bindings() if binding.id} == {command.id for command in COMMANDS if command.keys}
    for menu in MENUS:
        mnemonics = [mnemonic(command.label) for command in COMMANDS if command.menu == menu]
        assert len(mnemonics) == len(set(mnemonics)), menu
    assert len({mnemonic(label) for label in MENUS.values()}) == len(MENUS)


def mnemonic(label: str) -> str:
    return label[label.index("&") + 1].lower()


def ways(command: Command) -> list[str]:
    return [*(key for key in command.keys.split(",") if key), "menu", "palette"]


async def by(way: str, command: Command, desk: Desktop) -> None:
    if way == "menu":
        await desk.press(f"alt+{mnemonic(MENUS[command.menu])}", mnemonic(command.label))
    elif way == "palette":
        hits = [hit async for hit in CommandProvider(desk.screen).search(f"{command.menu}: {command.title}")]
        await max(hits, key=lambda hit: hit.score).command()
    else:
        await desk.press(way)


async def clear(desk: Desktop) -> None:
    """Back to where a command finds the desktop: a start takes longer than most commands."""
    while desk.app.screen is not desk.screen:
        desk.app.pop_screen()
        await desk.pilot.pause()
    screen = desk.screen
    desk.link.gate.set()
    await screen.session.generator.stop()
    screen.session.generator.plan = None
    if len(screen.chat.views) > 1 or desk.conversation.turns or desk.view.composer.text:
        await screen.chat.new_conversation()
        for view in screen.chat.views[:-1]:
            tab = next(tab for tab in screen.chat.query(TabPane) if view in tab.walk_children())
            await screen.chat.tabs.remove_pane(str(tab.id))
    del screen.session.links[1:]
    screen.session.place = 0
    desk.link.calls.clear()
    desk.link.asked.clear()
    if desk.app.theme != "cudaprefill-dark":
        desk.app.theme = "cudaprefill-dark"
    desk.app.clear_notifications()
    if screen.desk.hidden or screen.desk.zoomed:
        screen.desk.reset()
    if screen.focused is not desk.view.composer:
        screen.desk.show("chat")
        await desk.pilot.pause(0.1)  # the focus follows the next drawing
    await desk.until(lambda: screen.focused is desk.view.composer)


@pytest.mark.parametrize("menu", [menu for menu in MENUS if menu != "Play"])
def test_the_commands_of_a_menu_do_what_they_say(menu: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with desktop(tmp_path, size=SMALL) as desk:
            for command in COMMANDS:
                if command.menu == menu and command.id != "file.quit":
                    await clear(desk)
                    await do(command, CASES[command.id], desk)

    asyncio.run(main())


def test_quit_leaves(tmp_path: Path) -> None:
    async def main() -> None:
        async with desktop(tmp_path) as desk:
            await do(BY_ID["file.quit"], CASES["file.quit"], desk)

    asyncio.run(main())


async def do(command: Command, case: Case, desk: Desktop) -> None:
    """By its first key, or by its menu entry where it has none."""
    if case.prepare is not None:
        await case.prepare(desk)
    assert not case.check(desk), f"{command.id}: nothing is left to do"
    await by(ways(command)[0], command, desk)
    if case.after is not None:
        await case.after(desk)
    try:
        await desk.until(lambda: case.check(desk))
    except AssertionError as error:
        raise AssertionError(f"{command.id}: {error}") from None


def test_keys_menu_entries_and_the_palette_all_lead_to_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the command then does is asked above; here it only says its name."""

    async def main() -> None:
        async with desktop(tmp_path, size=SMALL) as desk:
            await being_answered(desk)  # so that no command is out of place
            called: list[str] = []
            screen_type = type(desk.screen)
            for command in COMMANDS:
                name, _, _ = command.action.partition("(")
                if not command.play and name not in NOT_RECORDED:
                    monkeypatch.setattr(screen_type, f"action_{name}", _recorder(name, called))
            for command in COMMANDS:
                name, _, arguments = command.action.partition("(")
                if command.play or name in NOT_RECORDED:
                    continue
                for way in ways(command):
                    called.clear()
                    await by(way, command, desk)
                    try:
                        await desk.until(lambda: called)
                    except AssertionError:
                        raise AssertionError(f"{command.id} by {way}") from None
                    assert called == [f"{name}({arguments}" if arguments else name], (command.id, way)

    asyncio.run(main())


def _recorder(name: str, called: list[str]) -> Callable[..., None]:
    def action(self: object, *arguments: object) -> None:
        called.append(f"{name}({', '.join(map(repr, arguments))})" if arguments else name)

    return action


@pytest.mark.parametrize("identifier", list(PLAY_CASES))
def test_a_command_of_a_recording_does_what_it_says(identifier: str, tmp_path: Path) -> None:
    path = tmp_path / "recording.jsonl"
    times = iter([0.0, 60.0])
    with Recorder(path, lambda: next(times)) as recorder:
        recorder(snapshot())
        recorder(snapshot())

    async def main() -> None:
        for way in ways(BY_ID[identifier])[:2]:
            link = PlaybackLink(path, read_recording(path))
            async with desktop(tmp_path, link, chat=None) as desk:
                assert not PLAY_CASES[identifier](link)
                await by(way, BY_ID[identifier], desk)
                await desk.until(lambda: PLAY_CASES[identifier](link))  # noqa: B023

    asyncio.run(main())


def test_the_palette_lists_every_command_and_runs_the_one_that_is_typed(tmp_path: Path) -> None:
    async def main() -> None:
        async with desktop(tmp_path) as desk:
            listed = [hit async for hit in CommandProvider(desk.screen).discover()]
            assert len(listed) == sum(not command.play for command in COMMANDS)
            await desk.press("ctrl+p", *"theme")
            palette = desk.app.screen
            await desk.until(lambda: palette.query_one(CommandList).option_count)
            await desk.until(lambda: desk.app.theme == "cudaprefill-dark")
            await desk.press("enter")
            await desk.until(lambda: desk.app.theme == "cudaprefill-light")

    asyncio.run(main())


def test_alt_and_a_letter_open_a_menu(tmp_path: Path) -> None:
    async def main() -> None:
        async with desktop(tmp_path) as desk:
            for place, menu in enumerate(desk.screen.menu_bar.menus):
                await desk.press(f"alt+{mnemonic(menu.label)}")
                assert desk.screen.menu_bar.opened == place

    asyncio.run(main())


def test_without_the_chat_its_commands_are_nowhere(tmp_path: Path) -> None:
    chat_commands = [command for command in COMMANDS if command.chat]

    async def main() -> None:
        async with desktop(tmp_path, FakeLink(), chat=None) as desk:
            await desk.press(*(key for command in chat_commands for key in command.keys.split(",") if key))
            assert not desk.dialog
            assert not desk.toasts
            entries = [item.action for menu in desk.screen.menu_bar.menus for item in menu.items if item is not None]
            assert not {command.action for command in chat_commands} & set(entries)

    asyncio.run(main())
