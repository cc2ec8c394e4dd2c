"""Prompts that are asked anew."""

from __future__ import annotations

import asyncio
from pathlib import Path

from cudaprefill_tui.widgets.chat_turn import TurnView
from tests.tui.desktop_harness import Desktop, desktop


async def three_turns(desk: Desktop) -> None:
    for prompt in ("one", "two", "three"):
        await desk.ask(prompt)


def test_any_prompt_is_edited_and_what_followed_it_gives_way(tmp_path: Path) -> None:
    async def main() -> None:
        async with desktop(tmp_path) as desk:
            await three_turns(desk)
            await desk.type("a draft")
            for expected in ("three", "two", "one", "three", "two"):
                await desk.press("f3")
                assert desk.view.composer.text == expected
                assert len(desk.conversation.turns) == 3, "nothing is lost before it is sent"
            assert [view.has_class("-gives-way") for view in desk.view.query(TurnView)] == [False, True, True]
            await desk.press("!", "enter")
            await desk.until(lambda: len(desk.link.asked) == 4 and not desk.conversation.live_answer)
            assert [turn.prompt for turn in desk.conversation.turns] == ["one", "two!"]
            assert [message["content"] for message in desk.link.asked[-1][0]] == ["one", "you said one", "two!"]
            assert [view.turn.prompt for view in desk.view.query(TurnView)] == ["one", "two!"]
            assert not desk.view.composer.text
            assert not desk.view.query(".-gives-way")

    asyncio.run(main())


def test_escape_leaves_the_conversation_and_the_draft_as_they_were(tmp_path: Path) -> None:
    async def main() -> None:
        async with desktop(tmp_path) as desk:
            await three_turns(desk)
            await desk.type("a draft")
            await desk.press("f3", "f3", "x", "escape")
            assert desk.view.composer.text == "a draft"
            assert len(desk.conversation.turns) == 3
            assert not desk.view.query(".-gives-way")
            await desk.press("enter")
            await desk.until(lambda: len(desk.conversation.turns) == 4)

    asyncio.run(main())


def test_a_second_click_on_a_prompt_edits_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with desktop(tmp_path) as desk:
            await three_turns(desk)
            await desk.pilot.click(desk.view.query(".prompt").first(), times=2)
            await desk.until(lambda: desk.view.composer.text == "one")

    asyncio.run(main())


def test_an_edit_that_cannot_be_asked_takes_nothing_away(tmp_path: Path) -> None:
    async def main() -> None:
        async with desktop(tmp_path) as desk:
            await three_turns(desk)
            await desk.press("f3")
            desk.view.composer.text = "  "
            await desk.press("enter")
            await desk.until(lambda: any("prompt is empty" in toast for toast in desk.toasts))
            assert len(desk.conversation.turns) == 3
            desk.link.gate.clear()
            desk.view.composer.text = "again"
            await desk.press("enter")
            await desk.until(lambda: desk.conversation.live_answer)
            await desk.press("f3")
            await desk.until(lambda: any("still being written" in toast for toast in desk.toasts))

    asyncio.run(main())
