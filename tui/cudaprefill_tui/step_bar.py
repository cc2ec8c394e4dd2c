"""A step's token budget as cells: decodes first, then each chunk, then what was left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from cudaprefill.client.engine_view import StepView


@dataclass(frozen=True, slots=True)
class BarPart:
    """`cells` cells of one kind; `number` is the chunk's request."""

    kind: Literal["decode", "chunk", "unused"]
    cells: int
    number: int = -1


def bar_parts(step: StepView, width: int) -> list[BarPart]:
    """Shares of the step's budget in `width` cells. What got a token gets a cell, as far as there are cells."""
    record = step.record
    tokens = [max(record.num_decodes, 0), *(max(length, 0) for _, _, length, _ in record.chunks)]
    cells = share_cells(tokens, max(record.token_budget, sum(tokens), 1), width)
    parts = [BarPart("decode", cells[0])]
    parts += [BarPart("chunk", count, chunk[0]) for count, chunk in zip(cells[1:], record.chunks, strict=True)]
    parts.append(BarPart("unused", width - sum(cells)))
    return [part for part in parts if part.cells]


def share_cells(amounts: Sequence[int], total: int, width: int) -> list[int]:
    """Cells for each amount of `total`, which is at least their sum: rounded so that ends lie where they belong, but
    at least one for each that is not 0, as far as `width` goes.
    """
    cells = []
    before, end = 0, 0
    for amount in amounts:
        before += amount
        until = min(round(before * width / total), width)
        count = min(max(until - end, 1 if amount > 0 else 0), width - end)
        cells.append(count)
        end += count
    return cells


def fill_places(numbers: Sequence[int], fills: int) -> list[int]:
    """Which fill each chunk of a bar gets: its request's own, or the next where the neighbour has the same."""
    places: list[int] = []
    for number in numbers:
        place = number % fills
        if places and places[-1] == place:
            place = (place + 1) % fills
        places.append(place)
    return places
