"""Conversations: what was said, and what each answer cost. Nothing of a screen is in here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from .backend import Message

AnswerState = Literal["waiting", "streaming", "done", "stopped", "failed"]
MAX_TITLE = 24  # characters of a tab


@dataclass(frozen=True)
class ChatSettings:
    """What goes with every request of a conversation."""

    model: str | None = None  # an adapter of the server, or one of its names; None: its model
    system: str = ""
    temperature: float = 0.0
    top_p: float = 1.0
    max_tokens: int | None = None  # None: what the context allows
    seed: int | None = None


@dataclass(frozen=True)
class AnswerCost:
    """One answer in numbers; times in seconds, None where there was nothing to measure."""

    prompt_tokens: int = 0
    cached_tokens: int = 0  # of the prompt, found in the prefix index
    output_tokens: int = 0
    chunks: int | None = None  # None: no telemetry said
    queue: float | None = None
    prefill: float | None = None  # until the last chunk was computed
    first_sample: float | None = None  # from there to the first token; None: counted with the prefill
    ttft: float | None = None
    mean_itl: float | None = None

    @property
    def tokens_per_second(self) -> float | None:
        return 1 / self.mean_itl if self.mean_itl else None


@dataclass
class Answer:
    """One answer, as it grows."""

    text: str = ""
    state: AnswerState = "waiting"
    response_id: str = ""
    error: str = ""
    cut: str = ""  # why it ended before its end, "" where it did not
    cost: AnswerCost | None = None

    @property
    def is_live(self) -> bool:
        return self.state in ("waiting", "streaming")


@dataclass
class Turn:
    prompt: str
    answer: Answer = field(default_factory=Answer)


class Conversation:
    """Prompts and answers in turn. An answer that failed before its first word stays visible, and is not sent again."""

    def __init__(self, number: int, settings: ChatSettings | None = None) -> None:
        self.number = number
        self.settings = settings or ChatSettings()
        self.turns: list[Turn] = []

    @property
    def title(self) -> str:
        """The start of the first prompt, on one line."""
        words = " ".join(self.turns[0].prompt.split()) if self.turns else ""
        if not words:
            return f"Chat {self.number}"
        return words if len(words) <= MAX_TITLE else f"{words[: MAX_TITLE - 1].rstrip()}…"

    @property
    def live_answer(self) -> Answer | None:
        return self.turns[-1].answer if self.turns and self.turns[-1].answer.is_live else None

    @property
    def last_answer(self) -> Answer | None:
        """The last one with any text."""
        return next((turn.answer for turn in reversed(self.turns) if turn.answer.text), None)

    def messages(self) -> list[Message]:
        """All that the server needs to answer the last turn, without the system prompt."""
        messages: list[Message] = []
        for turn in self.turns:
            answer = turn.answer
            if turn is not self.turns[-1] and not answer.text:
                continue  # a prompt that nobody answered would only puzzle the model
            messages.append({"role": "user", "content": turn.prompt})
            if answer.text and not answer.is_live:
                messages.append({"role": "assistant", "content": answer.text})
        return messages

    def ask(self, prompt: str) -> Turn:
        """A new last turn, whose answer waits. ValueError while an answer is being written, or for an empty prompt."""
        if self.live_answer is not None:
            raise ValueError("an answer is still being written: stop it first")
        if not prompt.strip():
            raise ValueError("the prompt is empty")
        self.turns.append(Turn(prompt))
        return self.turns[-1]

    def take_back(self, index: int) -> str:
        """Removes turn `index` and those after it; returns its prompt, to be edited or sent again.

        IndexError where there is no such turn; ValueError while an answer is being written.
        """
        if self.live_answer is not None:
            raise ValueError("an answer is still being written: stop it first")
        if not 0 <= index < len(self.turns):
            raise IndexError(f"turn {index} of a conversation of {len(self.turns)}")
        prompt = self.turns[index].prompt
        del self.turns[index:]
        return prompt
