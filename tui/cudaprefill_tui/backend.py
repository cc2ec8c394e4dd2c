"""What a chat needs of an engine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

Message = dict[str, str]  # {"role": "user", "content": "..."}


@dataclass(frozen=True)
class AnswerFigures:
    """One answer in numbers; times in seconds."""

    prompt_tokens: int
    cached_tokens: int  # of the prompt, taken over from the prefix cache
    output_tokens: int
    ttft: float | None  # None where no token came
    itls: tuple[float, ...]  # gaps between consecutive tokens
    finish_reason: str  # "stop", "length" or "abort"


class Answer(Protocol):
    """An answer while it is made: iterate for the text as it comes, then read the figures."""

    def __iter__(self) -> Iterator[str]: ...

    def abort(self) -> None:
        """Stop the request; iteration ends with what was already sent."""

    @property
    def figures(self) -> AnswerFigures:
        """Known once iteration has ended."""


class ChatBackend(Protocol):
    """Raises ValueError, with a message for the person, from `ask` when a conversation cannot be answered."""

    @property
    def title(self) -> str: ...

    def ask(self, messages: list[Message]) -> Answer: ...
