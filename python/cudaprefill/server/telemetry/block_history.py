"""The block map and its owners, with the version at which each place last changed.

So a reader that last saw version v gets what changed since, however long ago that was, and a slow one costs no memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from cudaprefill.protocol.telemetry import ACTIVE, CACHED, EVICTED, FREE, SHARED, of_virtual_tokens

if TYPE_CHECKING:
    from numpy.typing import NDArray

_STATES = FREE + ACTIVE + SHARED + CACHED  # by the core's BlockState
_LETTERS = _STATES + of_virtual_tokens(_STATES)
MAX_ENDED_OWNERS = 4096


class BlockHistory:
    """The letter of each block, and the versions of its last change and its last eviction."""

    def __init__(self, states: NDArray[np.uint8], virtual: NDArray[np.bool_]) -> None:
        """[num_blocks] each: the core's BlockState, and whether the block holds virtual tokens."""
        self._letters = (states + len(_STATES) * virtual).astype(np.uint8)
        self._changed_at = np.zeros(len(states), dtype=np.int64)
        self._evicted_at = np.zeros(len(states), dtype=np.int64)

    def update(self, changes: NDArray[np.int32], version: int) -> None:
        """changes: [C, 4], a row a block, see Scheduler.take_block_changes."""
        blocks = changes[:, 0]
        self._letters[blocks] = changes[:, 1] + len(_STATES) * changes[:, 3]
        self._changed_at[blocks] = version
        self._evicted_at[blocks[changes[:, 2] != 0]] = version

    def whole(self) -> str:
        """One letter a block."""
        letters: NDArray[np.uint8] = np.frombuffer(_LETTERS.encode(), dtype=np.uint8)[self._letters]
        return letters.tobytes().decode()

    def num_since(self, version: int) -> int:
        return int(np.count_nonzero(self._changed_at > version))

    def since(self, version: int) -> list[tuple[int, str]]:
        """Blocks that changed after `version`, each with its state, behind EVICTED if it was evicted meanwhile."""
        blocks = np.flatnonzero(self._changed_at > version)
        evicted = (self._evicted_at[blocks] > version).tolist()
        letters = self._letters[blocks].tolist()
        return [
            (block, EVICTED + _LETTERS[letter] if was_evicted else _LETTERS[letter])
            for block, letter, was_evicted in zip(blocks.tolist(), letters, evicted, strict=True)
        ]


class OwnerHistory:
    """Block tables of the requests that have blocks, by request number."""

    def __init__(self) -> None:
        self._tables: dict[int, NDArray[np.int32]] = {}
        # Version of each place of a table. When a place changes, all behind it count as changed: so they never descend.
        self._placed_at: dict[int, NDArray[np.int64]] = {}
        self._changed_at: dict[int, int] = {}
        self._ended_at: dict[int, int] = {}  # requests that have no blocks any more, the latest last
        self._forgotten = 0  # version of the latest end that is not among `_ended_at` any more

    def update(self, tables: Mapping[int, NDArray[np.int32]], version: int) -> bool:
        """`tables` as they are now, none of them empty. Whether they changed."""
        ended = self._tables.keys() - tables.keys()
        changed = bool(ended)
        for number in ended:
            del self._tables[number], self._placed_at[number], self._changed_at[number]
            self._ended_at[number] = version
        for number, table in tables.items():
            before = self._tables.get(number)
            if before is None:
                self._ended_at.pop(number, None)
                self._placed_at[number] = np.full(len(table), version)
            elif np.array_equal(before, table):
                continue
            else:
                kept = self._placed_at[number][: _common_length(before, table)]
                self._placed_at[number] = np.concatenate((kept, np.full(len(table) - len(kept), version)))
            self._tables[number] = table
            self._changed_at[number] = version
            changed = True
        while len(self._ended_at) > MAX_ENDED_OWNERS:
            number = next(iter(self._ended_at))
            self._forgotten = self._ended_at.pop(number)
        return changed

    def whole(self) -> dict[str, list[int]]:
        return {str(number): table.tolist() for number, table in self._tables.items()}

    def remembers(self, version: int) -> bool:
        """Whether `since` can be answered."""
        return version >= self._forgotten

    def since(self, version: int) -> dict[str, tuple[int, list[int]]]:
        """Request -> (place, its table from there on). A request without blocks has (0, [])."""
        changes: dict[str, tuple[int, list[int]]] = {}
        for number, changed_at in self._changed_at.items():
            if changed_at > version:
                place = int(np.searchsorted(self._placed_at[number], version, side="right"))
                changes[str(number)] = (place, self._tables[number][place:].tolist())
        for number, ended_at in reversed(self._ended_at.items()):
            if ended_at <= version:
                break
            changes[str(number)] = (0, [])
        return changes


def _common_length(before: NDArray[np.int32], after: NDArray[np.int32]) -> int:
    length = min(len(before), len(after))
    different = np.flatnonzero(before[:length] != after[:length])
    return int(different[0]) if len(different) else length
