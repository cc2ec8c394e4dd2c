"""Strips taken apart into terminal cells, to see which of them differ."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter

from rich.cells import get_character_cell_size
from rich.style import Style
from textual.strip import Strip

Cell = tuple[str, Style | None]
UNKNOWN: Cell = ("?", Style(meta={"unknown": True}))  # equal to nothing that a strip holds


def cells_of(strip: Strip) -> list[Cell] | None:
    """A cell each; the second of a wide character is empty. None where characters do not add up to the strip's
    length, as in some sequences that terminals join to one.
    """
    cells: list[Cell] = []
    for text, style, control in strip:
        if control:
            return None
        if text.isascii():
            cells += [(character, style) for character in text]
            continue
        for character in text:
            width = get_character_cell_size(character)
            if width == 1:
                cells.append((character, style))
            elif width == 2:
                cells += [(character, style), ("", style)]
            elif cells:  # joins the character before it
                place = -2 if cells[-1][0] == "" else -1
                cells[place] = (cells[place][0] + character, style)
    return cells if len(cells) == strip.cell_length else None


def runs_of(cells: Iterable[Cell]) -> Iterator[tuple[str, Style | None]]:
    """Neighbours of one style as one text."""
    for style, run in groupby(cells, itemgetter(1)):
        yield "".join([text for text, _ in run]), style


def changed_runs(before: Sequence[Cell], after: Sequence[Cell], close: int) -> Iterator[tuple[int, int]]:
    """Start and end of the runs of `after` that differ from `before`, which is as long; runs with at most `close`
    equal cells between them are one. No run starts in the middle of a wide character.
    """
    start = end = -1
    for place, cell in enumerate(after):
        if cell == before[place]:
            continue
        if start >= 0 and place - end > close:
            yield start, end
            start = -1
        if start < 0:
            start = place - 1 if cell[0] == "" and place > 0 else place
        end = place + 1
    if start >= 0:
        yield start, end
