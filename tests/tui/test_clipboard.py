"""Copying says what became of it."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from cudaprefill_tui.clipboard import MAX_OSC52_BYTES, copy

TERMINAL = {"TERM": "xterm-256color", "PATH": ""}


def tool(directory: Path, name: str, script: str) -> None:
    path = directory / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_a_terminal_gets_the_text_by_osc_52() -> None:
    written: list[str] = []
    copied = copy("two\nlines ☃", written.append, "answer", TERMINAL)
    assert not copied.failed
    assert copied.message == "sent answer (11 characters) to the terminal's clipboard (OSC 52)"
    (sequence,) = written
    assert sequence.startswith("\x1b]52;c;")
    assert sequence.endswith("\a")
    assert base64.b64decode(sequence[7:-1]).decode() == "two\nlines ☃"


@pytest.mark.parametrize(
    ("text", "environment", "reason"),
    [
        ("", TERMINAL, "there is no answer to copy"),
        ("x", {"TERM": "linux", "PATH": ""}, "the Linux console has no clipboard"),
        ("x", {**TERMINAL, "TERM_PROGRAM": "Apple_Terminal"}, "macOS Terminal has no clipboard"),
        ("x" * MAX_OSC52_BYTES, TERMINAL, "terminals take 100,000"),
    ],
)
def test_what_cannot_work_is_told_and_not_sent(text: str, environment: dict[str, str], reason: str) -> None:
    written: list[str] = []
    copied = copy(text, written.append, "answer", environment)
    assert copied.failed
    assert reason in copied.message
    assert not written


def test_no_terminal_and_a_terminal_that_is_gone_are_told() -> None:
    def gone(sequence: str) -> None:
        raise OSError("Input/output error")

    assert copy("x", None, "answer", TERMINAL).failed
    assert "Input/output error" in copy("x", gone, "answer", TERMINAL).message


def test_inside_tmux_its_buffer_is_filled(tmp_path: Path) -> None:
    tool(tmp_path, "tmux", f'echo "$@" > {tmp_path}/arguments; cat > {tmp_path}/text')
    written: list[str] = []
    environment = {**TERMINAL, "TMUX": "/tmp/tmux", "PATH": f"{tmp_path}:/usr/bin:/bin"}
    copied = copy("two\nlines", written.append, "answer", environment)
    assert copied.message == "copied answer (9 characters) with tmux"
    assert (tmp_path / "text").read_text() == "two\nlines"
    assert (tmp_path / "arguments").read_text() == "load-buffer -w -\n"
    assert not written


def test_a_tool_that_fails_leaves_it_to_the_terminal(tmp_path: Path) -> None:
    tool(tmp_path, "xclip", "exit 1")
    written: list[str] = []
    copied = copy("x", written.append, "answer", {**TERMINAL, "DISPLAY": ":0", "PATH": str(tmp_path)})
    assert "OSC 52" in copied.message
    assert len(written) == 1


def test_over_ssh_the_other_machine_s_desktop_is_left_alone(tmp_path: Path) -> None:
    tool(tmp_path, "xclip", f"touch {tmp_path}/called")
    environment = {**TERMINAL, "DISPLAY": ":0", "SSH_CONNECTION": "a b", "PATH": str(tmp_path)}
    assert "OSC 52" in copy("x", lambda sequence: None, "answer", environment).message
    assert not (tmp_path / "called").exists()
