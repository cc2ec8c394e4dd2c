"""The desktop in a real terminal, on a real server that it starts for itself."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

PATIENCE = 120  # seconds
TMUX = shutil.which("tmux")
DONE = "the shell goes on"

pytestmark = pytest.mark.skipif(TMUX is None, reason="tmux is not installed")


class Tmux:
    """A terminal of 120 x 40 with a shell in it, on a tmux server of its own."""

    def __init__(self, socket: Path) -> None:
        self._command = [str(TMUX), "-S", str(socket), "-f", "/dev/null"]
        self("new-session", "-d", "-x", "120", "-y", "40", "sh")

    def __call__(self, *arguments: str) -> str:
        done = subprocess.run(
            [*self._command, *arguments], capture_output=True, text=True, check=True, timeout=PATIENCE
        )
        return done.stdout

    def screen(self) -> str:
        return self("capture-pane", "-p")

    def type(self, text: str, *keys: str) -> None:
        self("send-keys", "-l", text)
        for key in keys:
            self("send-keys", key)

    def until(self, condition: Callable[[str], object]) -> str:
        deadline = time.monotonic() + PATIENCE
        while not condition(screen := self.screen()):
            assert time.monotonic() < deadline, screen
            time.sleep(0.1)
        return screen


@pytest.fixture
def tmux(tmp_path: Path) -> Iterator[Tmux]:
    terminal = Tmux(tmp_path / "tmux")
    yield terminal
    terminal("kill-server")


def servers() -> set[str]:
    """Processes of `cudaprefill serve`."""
    found = set()
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
        except OSError:
            continue
        if b"serve" in words and b"--exit-with-stdin" in words:
            found.add(entry.name)
    return found


def test_start_ask_see_the_answer_and_the_panes_quit(tmux: Tmux, tmp_path: Path) -> None:
    before = servers()
    path = os.pathsep.join(entry for entry in sys.path if entry)
    tmux.type(
        f"unset COLUMNS LINES; XDG_CONFIG_HOME={tmp_path} PYTHONPATH={path} {sys.executable} -m cudaprefill.cli.main"
        f" chat --kv-cache-memory 64MiB --max-tokens 12; echo {DONE} $?",
        "Enter",
    )
    tmux.until(lambda screen: "Ask something" in screen)
    tmux.until(lambda screen: "● live" in screen)
    started = servers() - before
    assert started
    tmux.type("What is the capital of France?", "Enter")
    screen = tmux.until(lambda screen: "= queue" in screen and "✓" in screen)
    assert "The capital of France is Paris." in screen
    assert "chunk" in screen, "telemetry knows the request by its id"
    assert "Steps ─ budget 512" in screen
    assert "■" in screen or "□" in screen, "blocks were taken"
    tmux("send-keys", "C-q")
    screen = tmux.until(lambda screen: f"{DONE} 0" in screen)
    assert "Steps" not in screen, "the terminal shows what it showed before"
    assert "[?" not in screen
    tmux.type("echo typed and seen", "Enter")
    tmux.until(lambda screen: screen.count("typed and seen") == 2)
    deadline = time.monotonic() + PATIENCE
    while started & servers():
        assert time.monotonic() < deadline, "the server is still there"
        time.sleep(0.1)
