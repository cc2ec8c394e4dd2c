"""Text cut and padded to a number of terminal cells, in which wide characters take two."""

from __future__ import annotations

from typing import Literal

from rich.cells import cell_len, set_cell_size

from .printable import displayable


def one_line(text: str) -> str:
    """`text` as it may stand in a row: nothing that ends a line or moves the cursor."""
    return " ".join(displayable(text).split())


def fit(text: str, width: int, align: Literal["left", "right"] = "left") -> str:
    """`text` in exactly `width` cells; what does not fit ends in an ellipsis."""
    if width <= 0:
        return ""
    length = cell_len(text)
    if length > width:
        return set_cell_size(text, width - 1) + "…"
    padding = " " * (width - length)
    return text + padding if align == "left" else padding + text


def join_fitting(parts: list[str], width: int, separator: str = " · ") -> str:
    """As many of the first parts as fit into `width` cells."""
    line = ""
    for part in parts:
        longer = f"{line}{separator}{part}" if line else part
        if cell_len(longer) > width:
            break
        line = longer
    return line


def percent(share: float | None) -> str:
    """Four cells: ` 61%`; a dash for what is not known."""
    return "   -" if share is None else f"{share:4.0%}"


def wrap_words(text: str, width: int) -> list[str]:
    """Lines of at most `width` cells, but for words that are longer."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if cell_len(longer) > width and lines[-1]:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines
