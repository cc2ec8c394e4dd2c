"""What a model writes must not steer the terminal that shows it."""

from __future__ import annotations

import unicodedata
from typing import TextIO


def printable(text: str) -> str:
    """`text` without control characters other than newline and tab."""
    return "".join(c if c in "\n\t" or unicodedata.category(c) != "Cc" else "�" for c in text)


def shown(text: str, stream: TextIO) -> str:
    """`text` as it may go to `stream`: printable where that is a terminal, else untouched."""
    return printable(text) if stream.isatty() else text
