"""The block pool as telemetry tells it: states, owners, and what was evicted a moment ago."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cudaprefill.protocol.telemetry import ACTIVE, CACHED, EVICTED, FREE, SHARED, of_virtual_tokens

_USED = ACTIVE + SHARED + CACHED
STATES = frozenset(map(ord, FREE + _USED + of_virtual_tokens(_USED)))
_FREE = ord(FREE)


class BlockStates:
    """A state a block, and which requests' tables name it.

    Every change returns the blocks that look different now. What is out of range or unknown is passed over: a server
    may be of another version.
    """

    def __init__(self) -> None:
        self.states = bytearray()
        self.owners: dict[int, list[int]] = {}  # request number -> its block table
        self.evicted: dict[int, float] = {}  # block -> when, the oldest first
        self._owners_of: dict[int, tuple[int, ...]] = {}

    def __len__(self) -> int:
        return len(self.states)

    def owners_of(self, block: int) -> tuple[int, ...]:
        """Numbers of the requests whose tables name the block, the longest owner first."""
        return self._owners_of.get(block, ())

    def state(self, block: int) -> str:
        return chr(self.states[block])

    def count(self, state: str) -> int:
        """Those of virtual tokens among them."""
        letters = {state, of_virtual_tokens(state)}
        return sum(self.states.count(letter.encode()) for letter in letters)

    def count_virtual(self) -> int:
        """Blocks that hold virtual tokens."""
        return sum(self.states.count(letter.encode()) for letter in of_virtual_tokens(_USED))

    def reset(self, blocks: str | None, owners: Mapping[str, list[int]] | None) -> None:
        self.states = bytearray(ord(c) if ord(c) in STATES else _FREE for c in blocks or "")
        self.evicted.clear()
        self.owners.clear()
        self._owners_of.clear()
        for number, table in (owners or {}).items():
            self._set_table(number, 0, table)

    def apply(self, changes: Iterable[tuple[int, str]], time: float) -> list[int]:
        changed = []
        for block, letters in changes:
            if not letters or not 0 <= block < len(self.states):
                continue
            if letters[0] == EVICTED:
                self.evicted.pop(block, None)
                self.evicted[block] = time
            state = ord(letters[-1])
            if state in STATES:
                self.states[block] = state
            changed.append(block)
        return changed

    def apply_owners(self, owners: Mapping[str, tuple[int, list[int]]]) -> list[int]:
        changed: list[int] = []
        for number, (place, table) in owners.items():
            changed += self._set_table(number, place, table)
        return changed

    def forget_owner(self, number: int) -> list[int]:
        return self._replace_tail(number, 0, [])

    def forget_evicted(self, before: float) -> list[int]:
        """Takes marks away that were set before a time."""
        old = []
        for block, time in self.evicted.items():
            if time >= before:
                break
            old.append(block)
        for block in old:
            del self.evicted[block]
        return old

    def _set_table(self, number: str, place: int, tail: list[int]) -> list[int]:
        if not (number.isascii() and number.isdigit()):
            return []
        return self._replace_tail(int(number), max(place, 0), tail)

    def _replace_tail(self, number: int, place: int, tail: list[int]) -> list[int]:
        """From `place` on the table of a request is `tail`; an empty table is forgotten."""
        table = self.owners.setdefault(number, [])
        gone, table[place:] = table[place:], tail
        if not table:
            del self.owners[number]
        for block in gone:
            rest = tuple(owner for owner in self._owners_of.get(block, ()) if owner != number)
            if rest:
                self._owners_of[block] = rest
            else:
                self._owners_of.pop(block, None)
        for block in tail:
            before = self._owners_of.get(block, ())
            if number not in before:
                self._owners_of[block] = (*before, number)
        return gone + tail
