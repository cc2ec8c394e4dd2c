"""What changed in an EngineView, so that whoever shows it redraws only that."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

MAX_UPDATES = 256  # of which the changed blocks are kept


@dataclass(frozen=True, slots=True)
class Changes:
    """What is new since a watch was last asked.

    reset: everything; the rest then says nothing.
    steps: how many of the newest steps are new; requests: numbers; blocks: those that look different, None for all.
    """

    reset: bool
    steps: int
    requests: frozenset[int]
    blocks: frozenset[int] | None
    settings: bool


class ChangeLog:
    """Every update has a version, and what it changed is found by it."""

    def __init__(self) -> None:
        self.version = 0
        self._reset = 0  # versions
        self._settings = 0
        self._requests: dict[int, int] = {}  # number -> version, the latest last
        self._blocks: deque[tuple[int, list[int]]] = deque(maxlen=MAX_UPDATES)

    def begin(self) -> None:
        self.version += 1

    def reset(self) -> None:
        """All is another now."""
        self.begin()
        self._reset = self.version
        self._requests.clear()
        self._blocks.clear()

    def touch(self, number: int) -> None:
        """A request changed. This is called for every token."""
        self._requests.pop(number, None)
        self._requests[number] = self.version

    def forget(self, number: int) -> None:
        """A request is known no more."""
        self._requests.pop(number, None)

    def touch_blocks(self, blocks: list[int]) -> None:
        if blocks:
            self._blocks.append((self.version, blocks))

    def touch_settings(self) -> None:
        self._settings = self.version

    def since(self, version: int, new_steps: int) -> Changes:
        """version: of the last time one asked."""
        if version < self._reset:
            return Changes(True, new_steps, frozenset(self._requests), None, True)
        return Changes(
            reset=False,
            steps=new_steps,
            requests=self._requests_since(version),
            blocks=self._blocks_since(version),
            settings=self._settings > version,
        )

    def _requests_since(self, version: int) -> frozenset[int]:
        numbers = []
        for number, changed in reversed(self._requests.items()):
            if changed <= version:
                break
            numbers.append(number)
        return frozenset(numbers)

    def _blocks_since(self, version: int) -> frozenset[int] | None:
        if len(self._blocks) == MAX_UPDATES and self._blocks[0][0] > version:
            return None  # some may have left the log
        blocks: set[int] = set()
        for changed, touched in reversed(self._blocks):
            if changed <= version:
                break
            blocks.update(touched)
        return frozenset(blocks)
