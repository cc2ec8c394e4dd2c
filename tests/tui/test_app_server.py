"""A server of one's own that ends is told of, and another one takes its place."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from cudaprefill_tui import app as app_module
from cudaprefill_tui.app import CudaprefillApp, Setup
from cudaprefill_tui.conversations import ChatSettings
from cudaprefill_tui.server_process import ServerProcess
from cudaprefill_tui.session import Session
from tests.tui.desktop_harness import Desktop
from tests.tui.fake_link import FakeLink

SERVES = (
    "import os, sys\n"
    "print(f'cudaprefill: serving m on http://127.0.0.1:{os.getpid()}', flush=True)\n"
    "while os.read(0, 100): pass\n"
)


@pytest.mark.parametrize("short_life", [0.0, 3600.0])
def test_a_server_that_is_killed_is_replaced_unless_it_hardly_lived(
    short_life: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app_module, "SHORT_LIFE", short_life)
    server = ServerProcess([], [sys.executable, "-c", SERVES])
    session = Session([], lambda url, key: FakeLink(url))

    async def main() -> None:
        app = CudaprefillApp(Setup(session, server, ChatSettings(), tmp_path / "x.json"))
        async with app.run_test(size=(100, 30), notifications=True) as pilot:
            desk = Desktop(app, pilot, tmp_path)
            await desk.until(lambda: session.links)
            await desk.ask("hello")
            first, pid = desk.link, server.pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            await desk.until(lambda: first.closed)
            await desk.until(lambda: any("was ended by signal 9" in toast for toast in desk.toasts))
            if short_life:
                assert not session.links
                assert "was ended by signal 9" in session.status()
            else:
                await desk.until(lambda: session.links)
                assert server.pid != pid
                assert desk.link.url.endswith(str(server.pid))
                await desk.ask("again")
            assert desk.conversation.turns[0].answer.text == "you said hello"
        await server.stop()

    asyncio.run(main())
