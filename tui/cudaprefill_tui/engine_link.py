"""One server as the terminal UI sees it: its telemetry, its answers, and whether it can be reached.

`EngineLink` is what the screens know; server_link.py keeps it over the network, playback.py from a file.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from typing import Literal
from urllib.parse import urlsplit

from cudaprefill.client.engine_view import EngineView
from cudaprefill.protocol.account import Account
from cudaprefill.protocol.itl_target import ItlTarget
from cudaprefill.protocol.telemetry import ServerMessage, TelemetryBlock, TelemetrySnapshot, TelemetryUpdate

from .backend import Message
from .conversations import AnswerCost, ChatSettings

MIN_FIRST_SAMPLE = (
    1e-4  # seconds; an engine that samples in the step of the last chunk tells less, and nothing of worth
)
LinkState = Literal["connecting", "live", "lost", "refused"]
STATE_WORDS = {
    "connecting": "◌ connecting",
    "live": "● live",
    "lost": "○ lost, reconnecting",
    "refused": "✕ refused",
}


class LinkError(Exception):
    """A request was refused or broke off; the message is for the person."""


@dataclass(frozen=True)
class AnswerText:
    text: str


@dataclass(frozen=True)
class AnswerEnded:
    """cut: why the answer ended before its end, "" where the model ended it."""

    cost: AnswerCost
    cut: str = ""


AnswerEvent = AnswerText | AnswerEnded


class AnswerStream(ABC):
    """Events of one answer: texts, then an AnswerEnded. Iteration raises LinkError."""

    @property
    @abstractmethod
    def response_id(self) -> str:
        """As telemetry names the request; "" until the server has taken it."""

    def __aiter__(self) -> AsyncIterator[AnswerEvent]:
        return self

    @abstractmethod
    async def __anext__(self) -> AnswerEvent: ...

    @abstractmethod
    async def cancel(self) -> None:
        """Asks the server to stop; iteration goes on to the AnswerEnded that follows."""

    @abstractmethod
    async def aclose(self) -> None:
        """Ends the request without another word; may be called again, and after the end."""


class EngineLink(ABC):
    """Attributes may be read at any time; `view` is filled by `run`."""

    def __init__(self, url: str, view: EngineView | None = None) -> None:
        self.url = url
        self.view = EngineView() if view is None else view
        self.state: LinkState = "connecting"
        self.reason = ""  # why it is lost or refused
        self.version = 0  # grows with everything that a screen could show
        self.on_news: Callable[[], None] = lambda: None  # is called then
        self.on_message: Callable[[ServerMessage], None] | None = None  # a recorder
        self._last_chunk: dict[int, float] = {}  # request -> when its newest chunk was computed

    @property
    def name(self) -> str:
        """127.0.0.1:8000"""
        return urlsplit(self.url).netloc or self.url

    @property
    def state_words(self) -> str:
        return STATE_WORDS[self.state]

    @abstractmethod
    async def run(self) -> None:
        """Keeps the telemetry coming until it is cancelled, through all that a server and a network can do."""

    @abstractmethod
    def respond(self, messages: list[Message], settings: ChatSettings) -> AnswerStream:
        """The answer to a conversation."""

    @abstractmethod
    async def change_settings(
        self,
        *,
        max_num_batched_tokens: int | None = None,
        long_prefill_token_threshold: int | None = None,
        itl_target_ms: ItlTarget | None = None,
    ) -> None:
        """Raises LinkError, here as below."""

    @abstractmethod
    async def abort(self, request_id: str) -> None: ...

    @abstractmethod
    async def reset_prefix_cache(self) -> None: ...

    @abstractmethod
    async def describe_block(self, block: int) -> TelemetryBlock: ...

    @abstractmethod
    async def explain(self, request_id: str) -> Account:
        """Where the time of a request went."""

    @abstractmethod
    async def set_owners(self, wanted: bool) -> None:
        """Whether telemetry says which blocks a request's table names."""

    @abstractmethod
    async def close(self) -> None: ...

    def set_state(self, state: LinkState, reason: str = "") -> None:
        self.state, self.reason = state, reason
        self.tell_news()

    def tell_news(self) -> None:
        self.version += 1
        self.on_news()

    def apply(self, message: ServerMessage) -> None:
        """Whatever a server sends ends here: what makes no sense loses the link, never the screen."""
        if self.on_message is not None:
            self.on_message(message)
        if not isinstance(message, (TelemetrySnapshot, TelemetryUpdate)):
            return
        try:
            self.view.apply(message)
        except (ValueError, KeyError, IndexError, TypeError, OverflowError) as error:
            self.set_state("lost", f"its telemetry makes no sense: {error}")
            return
        if isinstance(message, TelemetryUpdate):
            self._note_chunks(message)
        self.set_state("live")

    def cost_of(self, number: int) -> AnswerCost | None:
        """What telemetry alone knows of any request; None before its first token."""
        record = self.view.requests.get(number)
        if record is None or record.first_token is None or record.first_scheduled is None:
            return None
        last_chunk = min(self._last_chunk.get(number, record.first_token), record.first_token)
        first_sample = record.first_token - last_chunk
        if first_sample < MIN_FIRST_SAMPLE:
            last_chunk = record.first_token
        gaps = record.output_tokens - 1
        last_token = record.last_token or record.first_token
        return AnswerCost(
            prompt_tokens=record.prompt_tokens,
            cached_tokens=record.hit_tokens,
            output_tokens=record.output_tokens,
            chunks=record.num_chunks or None,
            queue=record.first_scheduled - record.arrived,
            prefill=max(last_chunk - record.first_scheduled, 0.0),
            first_sample=first_sample if first_sample >= MIN_FIRST_SAMPLE else None,
            ttft=record.first_token - record.arrived,
            mean_itl=(last_token - record.first_token) / gaps if gaps > 0 else None,
        )

    def cost_with_telemetry(self, cost: AnswerCost, response_id: str) -> AnswerCost:
        """`cost` with the number of chunks, and the first sample apart from the prefill, where telemetry knows them."""
        number = self.view.number_of(response_id)
        known = self.cost_of(number) if number is not None else None
        if known is None:
            return cost
        if cost.prefill is None or known.first_sample is None:
            return replace(cost, chunks=known.chunks)
        first_sample = min(known.first_sample, cost.prefill)
        return replace(cost, chunks=known.chunks, prefill=cost.prefill - first_sample, first_sample=first_sample)

    def _note_chunks(self, update: TelemetryUpdate) -> None:
        for change in update.requests or ():
            record = self.view.requests.get(change.number)
            if change.kind == "chunk" and (
                record is None or record.first_token is None or change.time <= record.first_token
            ):
                self._last_chunk[change.number] = change.time
        if len(self._last_chunk) > 2 * len(self.view.requests) + 64:
            self._last_chunk = {
                number: time for number, time in self._last_chunk.items() if number in self.view.requests
            }
