"""The newest items of a sequence that never ends."""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Ring(Generic[Item]):
    """Items keep the place they were appended at, counted from 0; the oldest are forgotten."""

    def __init__(self, size: int) -> None:
        self._items: deque[Item] = deque(maxlen=size)
        self.end = 0  # the place of the next item

    @property
    def start(self) -> int:
        """The place of the oldest item that is still here."""
        return self.end - len(self._items)

    def append(self, item: Item) -> None:
        self._items.append(item)
        self.end += 1

    def since(self, place: int) -> list[Item]:
        """Items from `place` on, as far as they are still here."""
        return list(islice(self._items, max(0, place - self.start), None))
