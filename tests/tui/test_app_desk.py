"""The desk at every size, and what it remembers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from textual.events import DescendantFocus
from textual.message import Message
from textual.widgets import Button, Tab, Tabs

from cudaprefill_tui.markdown_text import join_blocks, parse_blocks
from cudaprefill_tui.preferences import load_preferences
from cudaprefill_tui.widgets.answer_markdown import PAGE_LINES, AnswerMarkdown
from cudaprefill_tui.widgets.chat_turn import TurnView
from cudaprefill_tui.widgets.pane import Line
from tests.tui.desktop_harness import desktop, feed

SIZES = {(200, 60): "wide", (120, 40): "desktop", (80, 24): "desktop", (60, 24): "tabs", (20, 5): "too-small"}


def test_every_size_has_its_layout_and_none_is_a_crash(tmp_path: Path) -> None:
    async def main() -> None:
        async with desktop(tmp_path) as desk:
            await desk.ask("hello")
            for (columns, rows), mode in [*SIZES.items(), *reversed(SIZES.items()), ((1, 1), "too-small")]:
                await desk.pilot.resize_terminal(columns, rows)
                await desk.until(lambda: desk.screen.desk.mode == mode)  # noqa: B023
                await desk.pilot.pause()
                seen = [name for name, pane in desk.screen.desk.panes.items() if pane.region.area]
                assert len(seen) == {"wide": 5, "desktop": 5, "tabs": 1, "too-small": 0}[mode], (columns, rows, seen)

    asyncio.run(main())


def test_in_tabs_every_pane_can_be_reached(tmp_path: Path) -> None:
    async def main() -> None:
        async with desktop(tmp_path, size=(60, 24)) as desk:
            for pane in desk.screen.desk.panes.values():
                await desk.until(lambda: pane.region.area)  # noqa: B023
                await desk.press("f6")

    asyncio.run(main())


def test_panes_are_passed_faster_than_they_are_drawn(tmp_path: Path) -> None:
    async def main() -> None:
        async with desktop(tmp_path, size=(60, 24)) as desk:
            panes = desk.screen.desk
            await desk.until(lambda: panes.mode == "tabs")
            for name in [*panes.panes, *panes.panes][1:]:
                panes.move_focus(1)
                assert panes.current == name
                focused = desk.screen.focused  # nothing, where no engine has told a pane yet what to show
                assert focused is None or panes.panes[name] in focused.ancestors_with_self
            await desk.pilot.pause()
            assert [pane.id for pane in panes.panes.values() if pane.region.area] == [name]

    asyncio.run(main())


@pytest.mark.parametrize("size", [(60, 24), (120, 40), (200, 50)])
def test_what_was_said_of_panes_before_changes_nothing(size: tuple[int, int], tmp_path: Path) -> None:
    async def main() -> None:
        async with desktop(tmp_path, size=size) as desk:
            panes = desk.screen.desk
            stale: list[Message] = [DescendantFocus(desk.view.composer), DescendantFocus(panes.panes["engine"])]
            for tabs in panes.query(Tabs).filter("#pane-tabs, #lower-tabs"):
                stale += [Tabs.TabActivated(tabs, tab) for tab in tabs.query(Tab)]
            panes.show("load")
            await desk.pilot.pause()
            for message in stale:
                panes.post_message(message)
            await desk.pilot.pause()
            assert panes.current == "load"
            assert panes.panes["load"].region.area
            assert panes.query_one("#lower-tabs", Tabs).active == "show-load"

    asyncio.run(main())


def test_a_click_on_the_tab_of_a_pane_gives_it_the_keys(tmp_path: Path) -> None:
    async def main() -> None:
        async with desktop(tmp_path, size=(60, 24)) as desk:
            for name in ("steps", "chat", "requests", "chat"):
                await desk.pilot.click(f"#show-{name}")
                await desk.until(lambda: desk.screen.desk.panes[name].region.area)  # noqa: B023
                await desk.until(lambda: desk.screen.desk.panes[name].has_focus_within)  # noqa: B023
            await desk.press("h", "i")
            assert desk.view.composer.text == "hi"

    asyncio.run(main())


@pytest.mark.parametrize("size", [(60, 24), (120, 40)])
def test_a_pane_that_is_shown_for_the_first_time_takes_the_keys(size: tuple[int, int], tmp_path: Path) -> None:
    async def main() -> None:
        async with desktop(tmp_path, size=size) as desk:
            feed(desk)
            desk.screen.desk.show("engine")
            await desk.until(lambda: isinstance(desk.screen.focused, Button))

    asyncio.run(main())


@pytest.mark.parametrize("size", [(60, 24), (120, 40), (200, 50)])
def test_when_the_pane_with_the_focus_is_hidden_another_takes_it(size: tuple[int, int], tmp_path: Path) -> None:
    async def main() -> None:
        async with desktop(tmp_path, size=size) as desk:
            panes = desk.screen.desk
            feed(desk)
            for name in ("chat", "steps", "blocks", "requests", "latency"):
                panes.show(name)
                await desk.pilot.pause()
                await desk.screen.run_action(f"toggle_pane('{name}')")
                await desk.pilot.pause()
                assert panes.current != name
                assert panes.panes[panes.current].region.area
                assert panes.panes[panes.current].has_focus_within

    asyncio.run(main())


def test_another_conversation_comes_to_the_front(tmp_path: Path) -> None:
    async def main() -> None:
        async with desktop(tmp_path, size=(60, 24)) as desk:
            await desk.screen.run_action("new_conversation")
            desk.screen.desk.show("steps")
            await desk.pilot.pause()
            await desk.screen.run_action("next_conversation")
            await desk.until(lambda: desk.view.composer.has_focus and desk.screen.chat.region.area)

    asyncio.run(main())


def test_theme_and_hidden_panes_are_remembered(tmp_path: Path) -> None:
    async def main() -> None:
        async with desktop(tmp_path) as desk:
            await desk.press("f9")
            await desk.screen.run_action("toggle_pane('blocks')")
        preferences, _ = load_preferences(desk.preferences)
        assert (preferences.theme, preferences.hidden) == ("cudaprefill-light", ["blocks"])
        async with desktop(tmp_path) as desk:
            assert desk.app.theme == "cudaprefill-light"
            assert not desk.screen.desk.panes["blocks"].region.area

    asyncio.run(main())


def test_preferences_that_make_no_sense_are_told_of(tmp_path: Path) -> None:
    (tmp_path / "terminal-ui.json").write_text("{bad")

    async def main() -> None:
        async with desktop(tmp_path) as desk:
            assert any("starting with the default layout" in toast for toast in desk.toasts)

    asyncio.run(main())


@pytest.mark.parametrize("unit", ["word ", "line\n", "para\n\n", "- item\n"])
def test_an_answer_in_pages_shows_all_of_its_text(unit: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with desktop(tmp_path) as desk:
            desk.link.gate.clear()
            await desk.type("x")
            await desk.press("enter")
            await desk.until(lambda: desk.view.query(TurnView))
            answer = desk.view.query_one(AnswerMarkdown)
            for place in range(3 * PAGE_LINES):
                await answer.append(f"{place}{unit}")
            await answer.append("\n\n```python\n")
            for place in range(3 * PAGE_LINES):
                await answer.append(f"code{place} = 1\n")
            shown = "\n\n".join(str(page.content) for page in answer.query("Static").results())  # type: ignore[attr-defined]
            whole = join_blocks(parse_blocks(answer.source)).plain
            assert shown.split() == whole.split()

    asyncio.run(main())


@pytest.mark.parametrize("size", [(40, 12), (80, 24), (200, 60)])
@pytest.mark.parametrize("key", ["f1", "f7"])
def test_the_buttons_of_a_dialog_are_seen_at_every_size(key: str, size: tuple[int, int], tmp_path: Path) -> None:
    async def main() -> None:
        async with desktop(tmp_path, size=size) as desk:
            await desk.press(key)
            await desk.until(lambda: desk.dialog)
            await desk.pilot.pause()
            for button in desk.app.screen.query(Button):
                visible, clip = desk.app.screen.find_widget(button).visible_region, button.region
                assert visible == clip

    asyncio.run(main())


def test_a_preset_can_be_chosen_before_the_engine_pane_was_seen(tmp_path: Path) -> None:
    async def main() -> None:
        async with desktop(tmp_path) as desk:
            await desk.until(lambda: desk.link.view.engine is not None)
            await desk.screen.run_action("preset('chat')")
            await desk.until(lambda: any(call[0] == "change_settings" for call in desk.link.calls))

    asyncio.run(main())


def test_a_pane_that_comes_into_sight_shows_what_there_is_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with desktop(tmp_path) as desk:
            await desk.until(lambda: desk.link.view.engine is not None)
            desk.screen._ticks_without_news = -(10**6)  # the look without news is far away
            await desk.press("f8")
            budget = desk.screen.query_one("#now-max_num_batched_tokens", Line)
            await desk.until(lambda: "now 512 tokens a step" in str(budget.content))

    asyncio.run(main())


def test_the_newest_step_stays_in_sight_through_every_size(tmp_path: Path) -> None:
    async def main() -> None:
        async with desktop(tmp_path) as desk:
            engine, steps = feed(desk, 60), desk.screen.desk.steps
            for size in ((80, 24), (200, 60), (80, 24), (120, 40)):
                resizing = asyncio.create_task(desk.pilot.resize_terminal(*size))
                for _ in range(30):  # steps come while the screen is laid out anew
                    engine.step()
                    desk.link.apply(engine.update())
                    desk.screen.tick()
                    await asyncio.sleep(0.005)
                await resizing
                await desk.until(lambda: steps.list.scroll_offset.y == steps.list.max_scroll_y)
                assert steps.list.following

    asyncio.run(main())
