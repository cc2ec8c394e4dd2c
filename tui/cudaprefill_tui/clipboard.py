"""Copying out of a terminal, and saying so when it cannot work.

Three ways, the surest first: tmux's own buffer, which tmux also hands to its terminal; the desktop's tool, where the
person sits at this machine; the terminal itself by OSC 52, which crosses SSH but never answers.
"""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass

# What xterm takes of an OSC 52 by default; others take more, none less.
MAX_OSC52_BYTES = 100_000
NO_OSC52 = {"linux": "the Linux console", "dumb": "a dumb terminal"}  # by TERM
NO_OSC52_PROGRAMS = {"Apple_Terminal": "macOS Terminal"}  # by TERM_PROGRAM
TOOL_SECONDS = 2.0


@dataclass(frozen=True)
class Copied:
    """What became of a copy: a message for the person, and whether it failed."""

    message: str
    failed: bool = False


def copy(
    text: str, write: Callable[[str], None] | None, what: str, environment: Mapping[str, str] = os.environ
) -> Copied:
    """Puts `text` into the clipboard. `write` sends to the terminal, None where there is none; `what` names it."""
    size = f"{what} ({len(text)} character{'s' if len(text) != 1 else ''})"
    if not text:
        return Copied(f"there is no {what} to copy", failed=True)
    for name, *arguments in _tools(environment):
        path = shutil.which(name, path=environment.get("PATH"))
        if path is not None and _feed([path, *arguments], text):
            return Copied(f"copied {size} with {name}")
    return _by_terminal(text, write, size, environment)


def osc52(text: str) -> str:
    return f"\x1b]52;c;{base64.b64encode(text.encode(errors='replace')).decode()}\a"


def _tools(environment: Mapping[str, str]) -> list[list[str]]:
    tools = []
    if environment.get("TMUX"):
        tools.append(["tmux", "load-buffer", "-w", "-"])
    elif not environment.get("SSH_CONNECTION"):
        if environment.get("WAYLAND_DISPLAY"):
            tools.append(["wl-copy"])
        if environment.get("DISPLAY"):
            tools += [["xclip", "-selection", "clipboard"], ["xsel", "--clipboard", "--input"]]
    return tools


def _feed(tool: list[str], text: str) -> bool:
    # What the tool says goes nowhere, so that one which stays to serve the selection holds no pipe of ours.
    try:
        done = subprocess.run(
            tool,
            input=text.encode(errors="replace"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=TOOL_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _by_terminal(text: str, write: Callable[[str], None] | None, size: str, environment: Mapping[str, str]) -> Copied:
    terminal = NO_OSC52.get(environment.get("TERM", "")) or NO_OSC52_PROGRAMS.get(environment.get("TERM_PROGRAM", ""))
    if write is None:
        return Copied(f"could not copy {size}: there is no terminal", failed=True)
    if terminal:
        return Copied(f"could not copy {size}: {terminal} has no clipboard for programs (OSC 52)", failed=True)
    sequence = osc52(text)
    if len(sequence) > MAX_OSC52_BYTES:
        return Copied(
            f"could not copy {size}: it is {len(sequence):,} bytes encoded, terminals take {MAX_OSC52_BYTES:,}",
            failed=True,
        )
    try:
        write(sequence)
    except OSError as error:
        return Copied(f"could not copy {size}: {error}", failed=True)
    return Copied(f"sent {size} to the terminal's clipboard (OSC 52)")
