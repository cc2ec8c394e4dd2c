"""Chat on a terminal, line by line: type, watch the answer stream, read what it cost."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TextIO

from .backend import Answer, AnswerFigures, ChatBackend, Message
from .figures import describe_answer, describe_session
from .printable import printable

HELP = """\
  /new            start a new conversation
  /system TEXT    set the system prompt and start a new conversation (no TEXT: remove it)
  /help           this list
  /quit           leave (so does Ctrl-D)
  Ctrl-C stops the answer that is being written."""


class TerminalChat:
    """One conversation at a time on a terminal. `run` returns when the person leaves."""

    def __init__(self, backend: ChatBackend, screen: TextIO, system: str | None) -> None:
        self._backend = backend
        self._screen = screen
        self._dim, self._plain = ("", "") if "NO_COLOR" in os.environ else ("\x1b[2m", "\x1b[0m")
        self._figures: list[AnswerFigures] = []
        self._conversation: list[Message] = []
        self._system = system
        self._start_over()

    def run(self) -> int:
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  (line editing and history for input())
        self._note(f"{self._backend.title} — /help for commands, Ctrl-D to leave")
        while True:
            try:
                line = input("\n> ").strip()
                if line == "/quit":
                    break
                if line.startswith("/"):
                    self._command(line)
                elif line:
                    self._answer(line)
            except EOFError:
                break
            except KeyboardInterrupt:
                self._note("Ctrl-D or /quit leaves")
        self._note(f"\n{describe_session(self._figures)}")
        return 0

    def _command(self, line: str) -> None:
        name, _, argument = line.partition(" ")
        if name == "/new":
            self._start_over()
            self._note("a new conversation")
        elif name == "/system":
            self._system = argument.strip() or None
            self._start_over()
            self._note(f"system prompt: {self._system or 'none'}; a new conversation")
        elif name == "/help":
            self._note(HELP)
        else:
            self._note(f"unknown command {name}; /help lists them")

    def _start_over(self) -> None:
        self._conversation = [{"role": "system", "content": self._system}] if self._system else []

    def _answer(self, prompt: str) -> None:
        turn: Message = {"role": "user", "content": prompt}
        try:
            answer = self._backend.ask([*self._conversation, turn])
        except ValueError as error:
            self._note(str(error))
            return
        text = self._stream(answer)
        self._figures.append(answer.figures)
        self._note(describe_answer(answer.figures))
        self._conversation += [turn, {"role": "assistant", "content": text}]

    def _stream(self, answer: Answer) -> str:
        text = ""
        deltas = iter(answer)
        while True:
            try:
                delta = next(deltas, None)
                if delta is None:
                    break
                text += delta
                self._screen.write(printable(delta))
                self._screen.flush()
            except KeyboardInterrupt:
                answer.abort()
        self._screen.write("\n")
        return text

    def _note(self, text: str) -> None:
        self._screen.write(f"{self._dim}{printable(text)}{self._plain}\n")
        self._screen.flush()


def is_terminal() -> bool:
    """Whether a person sits at both ends."""
    return sys.stdin.isatty() and sys.stdout.isatty()
