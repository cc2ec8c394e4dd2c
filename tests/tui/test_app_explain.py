"""F2 tells where the time went: of an answer, of a request, of a step."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from textual.widgets import Static

from cudaprefill.cli.desktop import playback
from cudaprefill_tui.engine_link import LinkError
from cudaprefill_tui.recording import Recorder
from tests.tui.desktop_harness import Desktop, desktop, feed
from tests.tui.fake_link import FakeLink
from tests.tui.synthetic import SyntheticEngine


def shown(desk: Desktop) -> str:
    return "\n".join(str(widget.content) for widget in desk.app.screen.query(".body Static").results(Static))


async def go_to(desk: Desktop, name: str) -> None:
    desk.screen.desk.show(name)
    await desk.until(lambda: desk.screen.desk.panes[name].has_focus_within)


def test_an_answer_is_explained_by_the_server_that_gave_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with desktop(tmp_path) as desk:
            await desk.ask("hello")
            await desk.press("f2")
            await desk.until(lambda: desk.dialog == "Where the time of r1 went")
            assert ("explain", "resp_1") in desk.link.calls
            text = shown(desk)
            assert "First token after 400 ms" in text
            assert "behind resp_0, [bold r, whose head lacks seats: 16 of 16 taken" in text
            assert "step 6: tokens 512 to 1,023" in text
            assert "1 shorter part, 0.1 ms in all" in text
            assert "512 of 1,040 tokens that can be shared" in text

    asyncio.run(main())


def test_a_bar_lies_where_its_part_lies_in_time(tmp_path: Path) -> None:
    async def main() -> None:
        async with desktop(tmp_path) as desk:
            await desk.ask("hello")
            await desk.press("f2")
            await desk.until(lambda: desk.dialog)
            bars = [line[15:45] for line in shown(desk).splitlines() if line.endswith(" 25%")]
            assert len(bars) == 4
            ends = [len(bar.rstrip()) for bar in bars]
            begins = [len(bar) - len(bar.lstrip()) for bar in bars]
            assert begins[0] == 0
            assert begins[1:] == ends[:-1]
            assert ends[-1] == 30
            assert len({bar.strip()[0] for bar in bars}) == 3, "queued, computed and left out differ without colour"

    asyncio.run(main())


def test_where_there_is_no_account_what_was_measured_here_is_told(tmp_path: Path) -> None:
    async def main() -> None:
        async with desktop(tmp_path) as desk:
            await desk.ask("hello")
            desk.link.fault = LinkError("not among those that are remembered")
            await desk.press("f2")
            await desk.until(lambda: desk.dialog == "Where the time went")
            assert "queue 31.0 ms" in shown(desk)
            assert "not among those that are remembered" in shown(desk)

    asyncio.run(main())


def test_with_nothing_asked_f2_says_what_it_is_for(tmp_path: Path) -> None:
    async def main() -> None:
        async with desktop(tmp_path) as desk:
            await desk.press("f2")
            await desk.until(lambda: any("choose a row first" in toast for toast in desk.toasts))
            assert not desk.dialog

    asyncio.run(main())


def test_in_the_request_table_the_row_under_the_cursor_is_explained(tmp_path: Path) -> None:
    async def main() -> None:
        async with desktop(tmp_path) as desk:
            feed(desk)
            await go_to(desk, "requests")
            await desk.press("down")
            record = desk.screen.desk.requests.current
            assert record is not None
            for key in ("f2", "w"):
                await desk.press(key)
                await desk.until(lambda: desk.dialog == f"Where the time of r{record.number} went")
                assert desk.link.calls[-1] == ("explain", record.id)
                await desk.press("escape")
                await desk.until(lambda: not desk.dialog)

    asyncio.run(main())


def test_a_recording_explains_the_requests_that_it_holds(tmp_path: Path) -> None:
    engine, path = SyntheticEngine(), tmp_path / "recording.jsonl"
    with Recorder(path, lambda: 0.0) as record:
        record(engine.snapshot())
        engine.submit(200, 4)
        for _ in range(12):
            engine.step()
            record(engine.update())

    async def main() -> None:
        link = playback(path, 1.0)
        async with desktop(tmp_path, link, chat=None) as desk:
            await desk.until(lambda: "ended" in link.state_words)
            await go_to(desk, "requests")
            await desk.press("down", "f2")
            await desk.until(lambda: desk.dialog == "Where the time of r1 went")
            (request,) = link.view.requests.values()
            account = await link.explain(request.id)
            assert [part.kind for part in account.parts].count("chunk") == request.num_chunks > 1
            assert account.ttft == link.view.ttft_of(1)
            with pytest.raises(LinkError, match="no request 'nobody'"):
                await link.explain("nobody")

    asyncio.run(main())


def test_a_late_token_leads_to_its_step_and_to_what_that_did(tmp_path: Path) -> None:
    async def main() -> None:
        async with desktop(tmp_path) as desk:
            feed(desk)
            slowest = desk.link.view.slowest_step_of(1)
            assert slowest is not None
            await go_to(desk, "requests")
            assert desk.screen.desk.requests.show_request(1)
            await desk.press("l")
            await desk.until(lambda: desk.screen.desk.steps.list.has_focus)
            assert desk.screen.desk.steps.list.cursor == slowest.record.number
            for key in ("f2", "enter"):
                await desk.press(key)
                await desk.until(lambda: desk.dialog == f"Step {slowest.record.number}")
                text = shown(desk)
                assert f"{slowest.num_tokens} of 96 tokens" in text
                number, start, length, _ = slowest.record.chunks[0]
                assert f"chunk of r{number}" in text
                assert f"tokens {start} to {start + length - 1} of 200" in text
                await desk.press("escape")
                await desk.until(lambda: not desk.dialog)

    asyncio.run(main())


def test_a_step_that_is_gone_is_told(tmp_path: Path) -> None:
    async def main() -> None:
        async with desktop(tmp_path, FakeLink()) as desk:
            feed(desk)
            await go_to(desk, "steps")
            await desk.press("up")
            desk.link.view.steps.clear()
            await desk.press("enter")
            await desk.until(lambda: any("no longer known" in toast for toast in desk.toasts))

    asyncio.run(main())
