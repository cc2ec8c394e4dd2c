"""The command in a terminal of its own: it starts without torch, and leaves the terminal as it was, however it ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

PATIENCE = 60  # seconds
NOBODY = "http://127.0.0.1:9"  # the discard port, where no server listens
LEAVES_SCREEN = "\x1b[?1049l"


class Terminal:
    """A process on a pseudo-terminal of 100 x 30."""

    def __init__(self, command: list[str], tmp_path: Path) -> None:
        self.master, self.slave = pty.openpty()
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        self.before = termios.tcgetattr(self.slave)
        self.output = ""
        self.process = subprocess.Popen(
            command,
            stdin=self.slave,
            stdout=self.slave,
            stderr=self.slave,
            env={
                **os.environ,
                "TERM": "xterm-256color",
                "XDG_CONFIG_HOME": str(tmp_path),
                "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            },
            preexec_fn=_own_the_terminal,
        )

    def read_until(self, text: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while text not in self.output:
            assert time.monotonic() < deadline, self.output[-2000:]
            self._read(0.1)

    def wait(self) -> int:
        """Until the process is gone; reads on meanwhile, as a terminal does."""
        deadline = time.monotonic() + PATIENCE
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.output[-2000:]
            self._read(0.1)
        self._read(0.1)
        return self.process.returncode

    def _read(self, seconds: float) -> None:
        while select.select([self.master], [], [], seconds)[0]:
            with contextlib.suppress(OSError):
                self.output += os.read(self.master, 1 << 16).decode(errors="replace")
                seconds = 0
                continue
            return

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for descriptor in (self.master, self.slave):
            with contextlib.suppress(OSError):
                os.close(descriptor)


def _own_the_terminal() -> None:
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.fixture
def terminals(tmp_path: Path) -> Iterator[list[Terminal]]:
    opened: list[Terminal] = []
    yield opened
    for terminal in opened:
        terminal.close()


def start(terminals: list[Terminal], tmp_path: Path, *arguments: str) -> Terminal:
    command = [sys.executable, "-m", "cudaprefill.cli.main", *arguments]
    terminals.append(Terminal(command, tmp_path))
    return terminals[-1]


def assert_restored(terminal: Terminal) -> None:
    assert LEAVES_SCREEN in terminal.output
    assert terminal.output.rindex(LEAVES_SCREEN) > terminal.output.rindex("\x1b[?1049h")
    assert termios.tcgetattr(terminal.slave) == terminal.before


def test_ctrl_q_leaves_and_restores_the_terminal(terminals: list[Terminal], tmp_path: Path) -> None:
    terminal = start(terminals, tmp_path, "chat", "--url", NOBODY)
    terminal.read_until("sk something")  # the cursor stands on the first letter
    os.write(terminal.master, b"\x11")
    assert terminal.wait() == 0
    assert_restored(terminal)
    assert (tmp_path / "cudaprefill" / "terminal-ui.json").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_restores_the_terminal(number: signal.Signals, terminals: list[Terminal], tmp_path: Path) -> None:
    terminal = start(terminals, tmp_path, "top", "--url", NOBODY)
    terminal.read_until("Steps")
    terminal.process.send_signal(number)
    assert terminal.wait() == 128 + number
    assert_restored(terminal)


def test_a_terminal_that_is_closed_takes_us_with_it(terminals: list[Terminal], tmp_path: Path) -> None:
    terminal = start(terminals, tmp_path, "chat", "--url", NOBODY)
    terminal.read_until("sk something")  # the cursor stands on the first letter
    os.close(terminal.slave)
    os.close(terminal.master)
    assert terminal.process.wait(PATIENCE) == 128 + signal.SIGHUP


def test_a_crash_restores_the_terminal_and_is_told(terminals: list[Terminal], tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "from cudaprefill.cli.main import main\n"
        "from cudaprefill_tui.screens.desktop import DesktopScreen\n"
        "def action_about(self): raise RuntimeError('a mistake of ours')\n"
        "DesktopScreen.action_help = action_about\n"
        f"sys.exit(main(['chat', '--url', {NOBODY!r}]))\n"
    )
    terminals.append(Terminal([sys.executable, "-c", script], tmp_path))
    terminal = terminals[-1]
    terminal.read_until("sk something")  # the cursor stands on the first letter
    os.write(terminal.master, b"\x1bOP")  # F1
    assert terminal.wait() == 1
    assert_restored(terminal)
    assert "a mistake of ours" in terminal.output[terminal.output.rindex(LEAVES_SCREEN) :]


def test_wrong_command_lines_are_one_line_before_any_screen(terminals: list[Terminal], tmp_path: Path) -> None:
    for arguments, reason in (
        (["chat", "--url", "nonsense"], "url must be"),
        (["top", "--play", "/nowhere"], "/nowhere"),
        (["top", "--record", "/nowhere/x"], "/nowhere/x"),
        (["chat", "--block-size", "16", "--threads", "0"], "threads"),
    ):
        terminal = start(terminals, tmp_path, *arguments)
        assert terminal.wait() == 1
        assert reason in terminal.output
        assert "\x1b[?1049h" not in terminal.output
        assert "Traceback" not in terminal.output


@pytest.mark.parametrize(
    "module", ["cudaprefill_tui.run", "cudaprefill.cli.chat", "cudaprefill.cli.desktop", "cudaprefill.cli.main"]
)
def test_the_desktop_does_not_wait_for_torch(module: str) -> None:
    script = f"import sys, {module}; print([name for name in ('torch', 'transformers') if name in sys.modules])"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout == "[]\n"


def test_top_needs_a_terminal() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-m", "cudaprefill.cli.main", "top"]
    done = subprocess.run(command, input="", capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 1
    assert "top draws on a terminal" in done.stderr
