"""Chat without a terminal."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest

from cudaprefill_tui.backend import AnswerFigures, Message
from cudaprefill_tui.figures import describe_answer, describe_session
from cudaprefill_tui.line_chat import run_line_chat
from cudaprefill_tui.printable import printable, shown
from cudaprefill_tui.terminal_chat import TerminalChat


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class FakeAnswer:
    def __init__(self, deltas: list[str], ttft: float | None = 0.25) -> None:
        self._deltas = deltas
        self.figures = AnswerFigures(
            prompt_tokens=10,
            cached_tokens=4,
            output_tokens=len(deltas),
            ttft=ttft,
            itls=(0.01, 0.03),
            finish_reason="stop",
        )

    def __iter__(self) -> Iterator[str]:
        return iter(self._deltas)

    def abort(self) -> None:
        raise AssertionError("nobody asked to stop")


class EchoBackend:
    title = "echo"

    def __init__(self) -> None:
        self.asked: list[list[Message]] = []

    def ask(self, messages: list[Message]) -> FakeAnswer:
        self.asked.append([dict(message) for message in messages])
        if "too long" in messages[-1]["content"]:
            raise ValueError("the prompt has 9000 tokens, max_model_len is 8192")
        return FakeAnswer(["you said ", messages[-1]["content"]])


def chat(text: str, system: str | None = None) -> tuple[EchoBackend, str, str, int]:
    backend, answers, report = EchoBackend(), io.StringIO(), io.StringIO()
    status = run_line_chat(backend, io.StringIO(text), answers, report, system)
    return backend, answers.getvalue(), report.getvalue(), status


def test_each_line_is_answered_on_standard_output_alone() -> None:
    _, answers, _, status = chat("one\n\n  two  \n")
    assert answers == "you said one\nyou said two\n"
    assert status == 0


def test_lines_are_turns_of_one_conversation() -> None:
    backend, _, _, _ = chat("one\ntwo", system="be brief")
    assert backend.asked[1] == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "you said one"},
        {"role": "user", "content": "two"},
    ]


def test_the_report_is_one_line_with_ttft_itl_and_prefix_hits() -> None:
    _, _, report, _ = chat("one\ntwo\n")
    assert report == (
        "cudaprefill: 2 answers · 4 tokens · TTFT p50 250 ms · ITL p50 20.0 ms"
        " · prefix hit 8 of 20 prompt tokens (40%)\n"
    )


def test_a_line_that_cannot_be_answered_is_told_and_leaves_the_conversation_as_it_was() -> None:
    backend, answers, report, status = chat("one\nthis is too long\ntwo\n")
    assert status == 1
    assert answers == "you said one\nyou said two\n"
    assert "9000 tokens, max_model_len is 8192" in report
    assert [message["content"] for message in backend.asked[2]] == ["one", "you said one", "two"]


def test_no_input_is_no_answer() -> None:
    assert chat("")[2] == "cudaprefill: no answers\n"


@pytest.mark.parametrize("character", ["\x1b", "\x07", "\x9b", "\r", "\x00"])
def test_what_a_model_writes_cannot_steer_the_terminal(character: str) -> None:
    assert printable(f"a{character}[2Jb\n\tc") == "a�[2Jb\n\tc"


def test_only_a_terminal_needs_printable_text() -> None:
    assert shown("\x1b[2J", Terminal()) == "�[2J"
    assert shown("\x1b[2J", io.StringIO()) == "\x1b[2J"


def test_an_answer_that_was_stopped_before_its_first_token_counts_in_no_ttft() -> None:
    stopped, whole = FakeAnswer([], ttft=None).figures, FakeAnswer(["x"]).figures
    assert describe_answer(stopped).startswith("no token (4 of 10 prompt tokens")
    assert "TTFT p50 250 ms" in describe_session([stopped, whole])
    assert "TTFT p50 none" in describe_session([stopped])


class Interrupted(FakeAnswer):
    """Ctrl-C comes where the chat reads or, when that is where `screen` raises it, writes."""

    aborted = False

    def abort(self) -> None:
        self.aborted = True


@pytest.mark.parametrize("where", ["read", "write", "ask"])
def test_ctrl_c_at_any_moment_of_an_answer_leads_back_to_the_prompt(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Screen(io.StringIO):
        def write(self, text: str) -> int:
            if where == "write" and text == "two":
                raise KeyboardInterrupt
            return super().write(text)

    class Deltas:
        def __init__(self) -> None:
            self.left = ["one", "two", "three"]

        def __next__(self) -> str:
            if where == "read" and len(self.left) == 2:
                self.left.pop(0)
                raise KeyboardInterrupt
            if not self.left:
                raise StopIteration
            return self.left.pop(0)

    answer = Interrupted([])
    monkeypatch.setattr(Interrupted, "__iter__", lambda self: Deltas())

    class Backend(EchoBackend):
        def ask(self, messages: list[Message]) -> FakeAnswer:
            if where == "ask":
                raise KeyboardInterrupt
            return answer

    lines = iter(["hello", "/quit"])
    monkeypatch.setattr("builtins.input", lambda prompt: next(lines))
    screen = Screen()
    assert TerminalChat(Backend(), screen, None).run() == 0
    assert answer.aborted == (where != "ask")
    assert ("1 answer" in screen.getvalue()) == (where != "ask")
