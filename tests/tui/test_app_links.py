"""Links: over the network to servers good and bad, and from a file."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from websockets.asyncio.server import ServerConnection, serve

from cudaprefill.protocol.codec import encode
from cudaprefill.protocol.telemetry import TelemetryUpdate
from cudaprefill_tui.conversations import ChatSettings
from cudaprefill_tui.engine_link import LinkError
from cudaprefill_tui.playback import PlaybackLink
from cudaprefill_tui.recording import Recorder, read_recording
from cudaprefill_tui.server_link import ServerLink
from tests.tui.desktop_harness import desktop
from tests.tui.fake_link import snapshot

PATIENCE = 30  # seconds
Behave = Callable[[ServerConnection], Awaitable[None]]


@contextlib.asynccontextmanager
async def served(behave: Behave) -> AsyncIterator[str]:
    """The URL of a websocket server that does with each connection what it is told."""
    async with serve(behave, "127.0.0.1", 0, max_size=None) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def until(condition: Callable[[], object]) -> None:
    for _ in range(PATIENCE * 100):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("waited in vain")


HOSTILE = {
    "no JSON": "{bad",
    "no object": "[1, 2]",
    "an unknown type": '{"type": "telemetry.surprise"}',
    "a missing field": '{"type": "telemetry.snapshot"}',
    "a block that is not there": encode(TelemetryUpdate(sequence_number=1, time=1.0, blocks=[(10**9, "a"), (-5, "c")])),
    "an unknown state": encode(TelemetryUpdate(sequence_number=1, time=1.0, blocks=[(0, "?")])),
    "many megabytes": encode(snapshot(blocks="a" * 20_000_000)),
    "numbers beyond reason": encode(TelemetryUpdate(sequence_number=1, time=1e300, dropped_steps=10**15)),
    "negative numbers": encode(snapshot(step=-1, time=-1e9)),
    "owners of nobody": json.dumps(
        {
            "type": "telemetry.update",
            "sequence_number": 1,
            "time": 1.0,
            "owners": {"x": [10**12, [-1]], "-3": [0, [10**9]]},
        }
    ),
}


@pytest.mark.parametrize("message", HOSTILE.values(), ids=HOSTILE.keys())
def test_whatever_a_server_sends_the_desktop_goes_on(message: str, tmp_path: Path) -> None:
    sent = asyncio.Event()

    async def behave(connection: ServerConnection) -> None:
        await connection.recv()
        with contextlib.suppress(Exception):
            await connection.send(encode(snapshot()))
            for _ in range(3):
                await connection.send(message)
            await connection.send(b"\x00\xff binary")
            await connection.send(encode(snapshot()))
            sent.set()
            await connection.wait_closed()

    async def main() -> None:
        async with served(behave) as url:
            link = ServerLink(url)
            async with desktop(tmp_path, link, size=(80, 24)) as desk:
                await asyncio.wait_for(sent.wait(), PATIENCE)
                await until(lambda: link.view.engine is not None)
                await desk.pilot.pause(0.3)
                await desk.press("f1")
                await until(lambda: desk.dialog == "Help")

    asyncio.run(main())


def test_a_server_that_comes_back_is_found_again() -> None:
    async def behave(connection: ServerConnection) -> None:
        await connection.recv()
        await connection.send(encode(snapshot()))
        await connection.wait_closed()

    async def main() -> None:
        async with serve(behave, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            link = ServerLink(f"http://127.0.0.1:{port}")
            running = asyncio.create_task(link.run())
            await until(lambda: link.state == "live")
        await until(lambda: link.state == "lost")
        assert link.view.engine is not None, "what was known stays on the screen"
        async with serve(behave, "127.0.0.1", port):
            await until(lambda: link.state == "live")
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await link.close()

    asyncio.run(main())


def test_an_answer_that_breaks_off_is_a_link_error() -> None:
    async def behave(connection: ServerConnection) -> None:
        await connection.recv()

    async def main() -> None:
        async with served(behave) as url:
            link = ServerLink(url)
            with pytest.raises(LinkError, match="lost"):
                async for _ in link.respond([{"role": "user", "content": "x"}], ChatSettings()):
                    pass
            with pytest.raises(LinkError, match="no connection"):
                await link.abort("resp_1")
            await link.close()

    asyncio.run(main())


def test_what_is_no_url_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="url must be"):
        ServerLink("nonsense")


# --- Recordings ---


def recorded(path: Path, *times: float) -> Path:
    clock = iter(times)
    with Recorder(path, lambda: next(clock)) as recorder:
        recorder(snapshot())
        for number in range(1, len(times)):
            recorder(TelemetryUpdate(sequence_number=number, time=100.0 + number))
    return path


def test_what_is_recorded_is_read_again_with_its_times(tmp_path: Path) -> None:
    path = recorded(tmp_path / "a.jsonl", 5.0, 5.5, 7.0)
    messages = list(read_recording(path))
    assert [time for time, _ in messages] == [0.0, 0.5, 2.0]
    assert messages[0][1] == snapshot()


@pytest.mark.parametrize(
    ("line", "reason"),
    [("{bad", "line 2: .* valid JSON"), ('{"time": "now"}', "line 2: it needs a time and a message")],
)
def test_a_line_that_makes_no_sense_is_named(line: str, reason: str, tmp_path: Path) -> None:
    path = recorded(tmp_path / "a.jsonl", 5.0)
    with path.open("a") as file:
        file.write(f"{line}\n")
    with pytest.raises(ValueError, match=reason):
        list(read_recording(path))


def test_a_recording_is_played_to_its_end_and_answers_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        link = PlaybackLink(Path("a"), read_recording(recorded(tmp_path / "a.jsonl", 5.0, 5.1, 5.2)), speed=64)
        await asyncio.wait_for(link.run(), PATIENCE)
        assert link.view.time == 102.0
        assert "■ ended" in link.state_words
        with pytest.raises(LinkError, match="answers nothing"):
            link.respond([], ChatSettings())
        await link.close()

    asyncio.run(main())


def test_a_recording_that_is_paused_stands_still(tmp_path: Path) -> None:
    async def main() -> None:
        link = PlaybackLink(Path("a"), read_recording(recorded(tmp_path / "a.jsonl", 0.0, 0.2, 3600.0)), speed=64)
        link.paused = True
        playing = asyncio.create_task(link.run())
        await asyncio.sleep(0.3)
        assert link.view.engine is not None, "its first message shows where it stands"
        assert link.view.time == 100.0
        link.paused = False
        await until(lambda: link.view.time == 101.0)
        playing.cancel()
        await asyncio.gather(playing, return_exceptions=True)

    asyncio.run(main())


def test_a_file_that_is_no_recording_is_refused_before_it_is_played(tmp_path: Path) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    with pytest.raises(ValueError, match="holds no telemetry"):
        PlaybackLink(empty, read_recording(empty))
    with pytest.raises(FileNotFoundError):
        PlaybackLink(empty, read_recording(tmp_path / "none.jsonl"))


def test_why_there_is_no_connection_is_said_in_words(tmp_path: Path) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"220 this is mail\r\n")
        writer.close()

    async def main() -> None:
        async with await asyncio.start_server(talk, "127.0.0.1", 0) as other:
            port = other.sockets[0].getsockname()[1]
            for link, words in (
                (ServerLink(f"http://127.0.0.1:{port}"), "no cudaprefill server"),
                (ServerLink("http://127.0.0.1:9"), "nobody listens there"),
                (ServerLink("http://nowhere.invalid"), "not known|No address|failure in name"),
            ):
                running = asyncio.create_task(link.run())
                await until(lambda: re.search(words, link.reason))  # noqa: B023
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
                await link.close()

    asyncio.run(main())
