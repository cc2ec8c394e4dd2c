"""The chat: what is shown is what was said, whatever was said."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from textual.widgets import Input

from cudaprefill_tui.clipboard import Copied
from cudaprefill_tui.conversations import ChatSettings
from cudaprefill_tui.engine_link import AnswerEnded, AnswerEvent, AnswerText, LinkError
from cudaprefill_tui.screens import desktop as desktop_module
from cudaprefill_tui.widgets.answer_markdown import AnswerMarkdown
from cudaprefill_tui.widgets.chat_turn import TurnView
from tests.tui.desktop_harness import Desktop, desktop
from tests.tui.fake_link import COST, FakeLink, snapshot

BRACKETS = "[/INST] x[0] [bold [b + [1, 2] [red]no[/red] [@click=app.quit]x[/]"


def screen_text(desk: Desktop) -> str:
    return "\n".join(strip.text for strip in desk.app.screen._compositor.render_strips())


def says(*texts: str) -> FakeLink:
    return FakeLink(script=lambda messages: [*(AnswerText(text) for text in texts), AnswerEnded(COST)])


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What goes to the clipboard."""
    texts: list[str] = []

    def copy(text: str, write: object, what: str) -> Copied:
        texts.append(text)
        return Copied(f"copied {what}", failed=not text)

    monkeypatch.setattr(desktop_module, "copy", copy)
    return texts


def test_brackets_are_shown_as_they_stand_everywhere(tmp_path: Path) -> None:
    engine = snapshot().engine
    engine.model = BRACKETS[:20]

    def script(messages: list[dict[str, str]]) -> list[AnswerEvent | Exception]:
        answer: list[AnswerEvent | Exception] = [AnswerText(BRACKETS), AnswerEnded(COST, "cut [/b] here")]
        return answer if len(messages) == 1 else [LinkError(f"error {BRACKETS}")]

    async def main() -> None:
        link = FakeLink(script=script)
        async with desktop(tmp_path, link, size=(169, 60)) as desk:
            link.apply(snapshot(engine=engine))
            await desk.press("f4")  # room enough for each text to stand on one line
            await desk.ask(f"prompt {BRACKETS}")
            desk.screen.tell(f"told {BRACKETS}")
            await desk.ask("again")
            await desk.until(lambda: f"error {BRACKETS}" in screen_text(desk))
            text = screen_text(desk)
            assert f"prompt {BRACKETS}" in text
            assert "cut [/b] here" in text
            assert f" {BRACKETS[:20]} · cpu/avx2" in text  # the status
            assert "prompt [/INST] x[0] [bo" in text  # the tab
            assert "told [/INST] x[0]" in text  # a toast
            assert desk.view.query(AnswerMarkdown).first().source == BRACKETS
            assert text.count("[red]no[/red]") >= 3  # the prompt, the answer, the error

    asyncio.run(main())


def test_html_links_and_controls_in_an_answer_neither_vanish_nor_act(tmp_path: Path) -> None:
    answer = "<b>bold</b>\n\n<script>x</script>\n\n[here](http://evil.example) \x1b[2J\u202eabc\r\nnext \ud800"

    async def main() -> None:
        async with desktop(tmp_path, says(answer)) as desk:
            opened: list[str] = []
            desk.app.open_url = lambda url, new_tab=True: opened.append(url)  # type: ignore[method-assign]
            await desk.ask("html")
            text = screen_text(desk)
            assert "<b>bold</b>" in text
            assert "<script>x</script>" in text
            assert "\x1b" not in text
            assert "\u202e" not in text
            text.encode()  # so that a terminal can be written to
            y = next(y for y, line in enumerate(text.splitlines()) if "here" in line)
            x = text.splitlines()[y].index("here")
            await desk.pilot.click(offset=(x + 1, y))
            assert not opened

    asyncio.run(main())


def test_wide_characters_emoji_and_right_to_left_text_stay_inside_their_pane(tmp_path: Path) -> None:
    async def main() -> None:
        async with desktop(tmp_path) as desk:
            for text in ("漢字 and 仮名 " * 20, "👩‍👩‍👧‍👦🎉 " * 40, "שלום עולם مرحبا " * 20, "e\u0301\u0301" * 200):
                await desk.ask(text)
            for width in (120, 81, 60, 120):
                await desk.pilot.resize_terminal(width, 40)
                await desk.pilot.pause()
                assert all(strip.cell_length == width for strip in desk.app.screen._compositor.render_strips())

    asyncio.run(main())


def test_the_server_gets_the_conversation_and_its_settings(tmp_path: Path) -> None:
    settings = ChatSettings(system="be brief", temperature=0.5)

    async def main() -> None:
        async with desktop(tmp_path, chat=settings) as desk:
            await desk.ask("one")
            await desk.ask("two")
            messages, sent = desk.link.asked[-1]
            assert [message["content"] for message in messages] == ["one", "you said one", "two"]
            assert sent == settings
            await desk.press("f7")
            await desk.until(lambda: desk.dialog)
            await desk.pilot.pause(0.1)
            desk.app.screen.query_one("#temperature", Input).value = "3"
            await desk.pilot.click("#accept")
            await desk.until(lambda: "must lie in 0 .. 2, got 3" in desk.text(".error"))
            await desk.until(lambda: not desk.app.screen.query("Button.-active"))  # one that is being pressed is deaf
            desk.app.screen.query_one("#temperature", Input).value = "1"
            await desk.pilot.click("#accept")
            await desk.until(lambda: desk.conversation.settings.temperature == 1.0)

    asyncio.run(main())


def test_what_an_answer_cost_stands_below_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with desktop(tmp_path) as desk:
            await desk.ask("hello")
            note = desk.text(".note")
            assert note.startswith("TTFT 397 ms = queue 31.0 ms + prefill 366 ms")
            assert "32 of 45 tokens from the prefix cache" in note
            assert "ITL 11.2 ms · 89 tok/s · 9 tokens" in note

    asyncio.run(main())


def test_until_the_first_word_the_place_in_the_queue_and_the_prefill_show(tmp_path: Path) -> None:
    async def main() -> None:
        async with desktop(tmp_path) as desk:
            desk.link.gate.clear()
            await desk.type("hello")
            await desk.press("enter")
            (record,) = snapshot().requests or []
            record.state, record.prompt_tokens, record.computed_tokens, record.hit_tokens = (
                "prefilling",
                3200,
                1600,
                800,
            )
            desk.link.apply(snapshot(requests=[record]))
            await desk.until(lambda: "1600 of 3200 tokens, 800 from the prefix cache" in desk.text(".note"))
            record.state = "waiting"
            desk.link.apply(snapshot(requests=[record]))
            await desk.until(lambda: "waiting in the queue, 0 ahead" in desk.text(".note"))

    asyncio.run(main())


def test_an_answer_that_fails_says_why_and_the_next_prompt_goes_out(tmp_path: Path) -> None:
    faults: list[Exception] = [LinkError("the connection was lost")]

    def script(messages: list[dict[str, str]]) -> list[AnswerEvent | Exception]:
        return [AnswerText("half"), faults.pop()] if faults else [AnswerText("whole"), AnswerEnded(COST)]

    async def main() -> None:
        async with desktop(tmp_path, FakeLink(script=script)) as desk:
            await desk.ask("one")
            assert "the connection was lost" in desk.text(".note")
            assert desk.conversation.turns[0].answer.text == "half"
            await desk.ask("two")
            assert desk.conversation.turns[1].answer.text == "whole"

    asyncio.run(main())


def test_a_prompt_without_a_server_stays_in_the_input_line(tmp_path: Path) -> None:
    async def main() -> None:
        async with desktop(tmp_path, notice="loading the model 40 %") as desk:
            await desk.until(lambda: "loading the model 40 %" in desk.text(".welcome"))
            await desk.type("hello")
            await desk.press("enter")
            await desk.until(lambda: "there is no server yet" in desk.toasts)
            assert desk.view.composer.text == "hello"

    asyncio.run(main())


def test_a_server_that_goes_away_and_comes_back_leaves_the_conversation(tmp_path: Path) -> None:
    async def main() -> None:
        async with desktop(tmp_path) as desk:
            await desk.ask("one")
            desk.link.set_state("lost", "the connection broke")
            await desk.until(lambda: "○ lost, reconnecting" in screen_text(desk))
            assert "you said one" in screen_text(desk)
            desk.link.apply(snapshot(reason="restarted"))
            await desk.until(lambda: "● live" in screen_text(desk))
            await desk.ask("two")
            assert [turn.answer.text for turn in desk.conversation.turns] == ["you said one", "you said two"]

    asyncio.run(main())


def test_a_server_that_does_not_stop_is_hung_up_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cudaprefill_tui.widgets.conversation_view.STOP_SECONDS", 0.05)

    async def main() -> None:
        async with desktop(tmp_path) as desk:
            desk.link.gate.clear()
            await desk.type("hello")
            await desk.press("enter")
            await desk.until(lambda: desk.link.streams)

            async def deaf() -> None: ...

            desk.link.streams[0].cancel = deaf  # type: ignore[method-assign]
            await desk.press("escape")
            await desk.until(lambda: desk.conversation.turns[0].answer.state == "stopped")
            await desk.until(lambda: desk.link.streams[0].closed)

    asyncio.run(main())


def test_a_conversation_that_is_closed_ends_its_request(tmp_path: Path) -> None:
    async def main() -> None:
        async with desktop(tmp_path) as desk:
            desk.link.gate.clear()
            await desk.type("hello")
            await desk.press("enter")
            await desk.until(lambda: desk.link.streams)
            await desk.screen.run_action("close_conversation")
            await desk.until(lambda: desk.dialog)
            await desk.pilot.click("#accept")
            await desk.until(lambda: desk.link.streams[0].closed)
            assert len(desk.screen.chat.views) == 1
            assert not desk.conversation.turns

    asyncio.run(main())


def test_enter_sends_and_a_line_can_be_started(tmp_path: Path) -> None:
    async def main() -> None:
        async with desktop(tmp_path) as desk:
            await desk.press(*"one", "ctrl+j", *"two", "enter")
            await desk.until(lambda: desk.link.asked)
            assert desk.link.asked[0][0][-1]["content"] == "one\ntwo"

    asyncio.run(main())


# --- Following the end ---


def lines(count: int) -> str:
    return "".join(f"line {number}\n\n" for number in range(count))


def test_the_view_stays_where_it_was_scrolled_to_and_follows_again_at_the_end(tmp_path: Path) -> None:
    async def main() -> None:
        async with desktop(tmp_path, says(lines(60))) as desk:
            await desk.ask("long")
            turns, (view,) = desk.view.turns, desk.view.query(TurnView)
            await desk.until(lambda: turns.max_scroll_y > 20 and turns.scroll_y == turns.max_scroll_y)

            async def stream(text: str) -> None:
                before = turns.max_scroll_y
                view.add_text(text)
                await desk.until(lambda: turns.max_scroll_y > before)
                await desk.pilot.pause()

            await stream(lines(5))
            assert turns.scroll_y == turns.max_scroll_y, "at the end it follows"
            for _ in range(10):
                turns.scroll_up(animate=False)
            await desk.pilot.pause()
            place = turns.scroll_y
            await stream(lines(25))
            assert turns.scroll_y == place, "scrolled up, it stays"
            turns.scroll_end(animate=False)
            await desk.until(lambda: turns.scroll_y == turns.max_scroll_y)
            await stream(lines(5))
            assert turns.scroll_y == turns.max_scroll_y, "back at the end, it follows"
            turns.scroll_home(animate=False)
            await desk.pilot.pause()
            await view.finish()
            await desk.ask("again")
            await desk.until(lambda: turns.scroll_y == turns.max_scroll_y)

    asyncio.run(main())


# --- Copying ---


def test_the_last_answer_is_copied_as_it_was_written(tmp_path: Path, copied: list[str]) -> None:
    answer = "A **bold** word\n\n```python\nx[0]\n```\n" + "long " * 60

    async def main() -> None:
        async with desktop(tmp_path, says(answer)) as desk:
            await desk.ask("x")
            await desk.press("ctrl+c")
            await desk.until(lambda: copied)
            assert copied == [answer]
            await desk.until(lambda: "copied answer" in desk.toasts)

    asyncio.run(main())


def test_what_is_selected_with_the_mouse_is_copied_without_borders_and_wraps(tmp_path: Path, copied: list[str]) -> None:
    answer = " ".join(f"word{number}" for number in range(24))  # three lines in its pane

    async def main() -> None:
        async with desktop(tmp_path, says(answer)) as desk:
            await desk.ask("x")
            rows = screen_text(desk).splitlines()
            top = next(y for y, row in enumerate(rows) if "word0 " in row)
            bottom = next(y for y, row in enumerate(rows) if "word23" in row)
            assert bottom - top >= 2
            left = rows[top].index("word0")
            await desk.pilot.mouse_down(offset=(left, top))
            await desk.pilot.hover(offset=(left + 6, top + 1))
            end = rows[bottom].index("word23") + len("word23")
            await desk.pilot.hover(offset=(end, bottom))
            await desk.pilot.mouse_up(offset=(end, bottom))
            await desk.press("ctrl+c")
            await desk.until(lambda: copied)
            assert copied == [answer]

    asyncio.run(main())


def test_nothing_to_copy_is_told(tmp_path: Path, copied: list[str]) -> None:
    async def main() -> None:
        async with desktop(tmp_path) as desk:
            await desk.press("ctrl+c")
            await desk.until(lambda: desk.toasts)
            assert [notification.severity for notification in desk.app._notifications] == ["error"]

    asyncio.run(main())


def test_export_asks_before_it_replaces(tmp_path: Path) -> None:
    path = tmp_path / "chat.md"
    path.write_text("precious")

    async def main() -> None:
        async with desktop(tmp_path) as desk:
            await desk.ask("hello")
            await desk.press("ctrl+s")
            await desk.until(lambda: desk.dialog)
            desk.app.screen.query_one("#field-path", Input).value = str(path)
            await desk.pilot.click("#accept")
            await desk.until(lambda: desk.dialog == "Are you sure?")
            assert path.read_text() == "precious"
            await desk.pilot.click("#accept")
            await desk.until(lambda: f"wrote {path}" in desk.toasts)
            assert "> hello\n\nyou said hello" in path.read_text()

    asyncio.run(main())


# --- Cost ---


def test_a_long_answer_costs_as_much_at_its_end_as_at_its_start(tmp_path: Path) -> None:
    """4000 tokens of Markdown; processor time, which a busy machine stretches less than that of the clock."""
    paragraph = "Some **bold** words and `code` in a line.\n\n- one\n- two\n\n```python\nprint(x[0])\n```\n\n"
    tokens = [f"{word} " for word in (paragraph * 200).split(" ")][:4000]

    async def main() -> None:
        async with desktop(tmp_path) as desk:
            desk.link.gate.clear()
            await desk.type("long")
            await desk.press("enter")
            await desk.until(lambda: desk.view.query(TurnView))
            view = desk.view.query_one(TurnView)
            costs = []
            for start in range(0, 4000, 400):
                began = time.process_time()
                for place in range(start, start + 400, 80):
                    view.add_text("".join(tokens[place : place + 80]))
                    await view._flush()
                    await desk.pilot.pause()
                await desk.press("x")
                costs.append(time.process_time() - began)
            assert view.query_one(AnswerMarkdown).source == "".join(tokens)
            assert desk.view.composer.text == "x" * 10
            assert sum(costs[-3:]) < 2 * sum(costs[1:4]), costs

    asyncio.run(main())
