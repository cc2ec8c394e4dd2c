"""Responses that can be fetched again and gone on from: the most recently used ones, bounded in number and bytes."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cudaprefill.protocol.responses import Response

# Most of what an entry costs beside its text and its token ids.
ENTRY_BYTES = 2048
MESSAGE_BYTES = 256


@dataclass(frozen=True)
class StoredTurn:
    """A response that has ended, and the conversation with it.

    messages: as chat templates want them, from the first on, the answer included, without instructions.
    instructions: what stood in front of them.
    known_token_ids: the exact tokens of the first `num_known` messages and the instructions, an answer the last of
        them: what the KV in the prefix cache was computed from. Empty when that cannot be gone on from.
    known_variables: what the chat template was handed when that answer was opened.
    """

    response: Response
    messages: tuple[dict[str, str], ...]
    instructions: str | None
    known_token_ids: array[int] = field(default_factory=lambda: array("i"))
    num_known: int = 0
    known_variables: Mapping[str, Any] = field(default_factory=dict)

    @property
    def num_bytes(self) -> int:
        """About what this holds in memory, as though it shared no message with other turns."""
        texts = [self.instructions or "", *(message["content"] for message in self.messages)]
        return (
            ENTRY_BYTES
            + sum(MESSAGE_BYTES + len(text.encode()) for text in texts)
            + len(self.response.output_text)
            + self.known_token_ids.itemsize * len(self.known_token_ids)
            + len(str(self.known_variables))
        )


class ResponseStore:
    """For one event loop. Looking a response up makes it the most recently used."""

    def __init__(self, max_responses: int, max_bytes: int) -> None:
        self.num_bytes = 0
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._turns: OrderedDict[str, tuple[StoredTurn, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._turns)

    def add(self, turn: StoredTurn) -> None:
        """Forgets the least recently used turns until all fit; one that is larger than the whole store is not kept."""
        self.remove(turn.response.id)
        size = turn.num_bytes
        if size > self._max_bytes:
            return
        self._turns[turn.response.id] = turn, size
        self.num_bytes += size
        while len(self._turns) > self._max_responses or self.num_bytes > self._max_bytes:
            _, (_, oldest) = self._turns.popitem(last=False)
            self.num_bytes -= oldest

    def get(self, response_id: str) -> StoredTurn | None:
        if response_id not in self._turns:
            return None
        self._turns.move_to_end(response_id)
        return self._turns[response_id][0]

    def remove(self, response_id: str) -> bool:
        """Whether it was there."""
        if response_id not in self._turns:
            return False
        self.num_bytes -= self._turns.pop(response_id)[1]
        return True


def find_turn(response_id: str, stores: Iterable[ResponseStore]) -> StoredTurn | None:
    """In the first store that has it."""
    return next((turn for store in stores if (turn := store.get(response_id)) is not None), None)
