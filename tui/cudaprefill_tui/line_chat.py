"""Chat without a terminal: prompts in line by line, answers out as plain text, figures on standard error."""

from __future__ import annotations

from typing import TextIO

from .backend import AnswerFigures, ChatBackend, Message
from .figures import describe_session
from .printable import shown


def run_line_chat(backend: ChatBackend, prompts: TextIO, answers: TextIO, report: TextIO, system: str | None) -> int:
    """Answers each non-empty line of `prompts` as the next turn of one conversation. Returns the exit status.

    A line that cannot be answered is told on `report`, left out of the conversation, and makes the status 1.
    """
    conversation: list[Message] = [{"role": "system", "content": system}] if system else []
    figures: list[AnswerFigures] = []
    status = 0
    for line in prompts:
        prompt = line.strip()
        if not prompt:
            continue
        turn: Message = {"role": "user", "content": prompt}
        try:
            answer = backend.ask([*conversation, turn])
        except ValueError as error:
            print(f"cudaprefill: {error}", file=report, flush=True)
            status = 1
            continue
        text = ""
        for delta in answer:
            text += delta
            answers.write(shown(delta, answers))
            answers.flush()
        answers.write("\n")
        answers.flush()
        conversation += [turn, {"role": "assistant", "content": text}]
        figures.append(answer.figures)
    print(f"cudaprefill: {describe_session(figures)}", file=report, flush=True)
    return status
