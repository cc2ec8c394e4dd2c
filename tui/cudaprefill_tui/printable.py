"""What a model writes must not steer the terminal that shows it."""

from __future__ import annotations

import re
import unicodedata
from typing import TextIO

# Line separators that Python and Markdown count differently, and marks that turn the direction of what stands beside.
_LINE_ENDS = re.compile("\r\n?|[\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
_DIRECTION_MARKS = re.compile("[\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """`text` without control characters other than newline and tab."""
    return "".join(c if c in "\n\t" or unicodedata.category(c) != "Cc" else "�" for c in text)


def displayable(text: str) -> str:
    """`text` for a part of a screen: printable, encodable, one kind of line end, no reach beyond its own place."""
    text = _DIRECTION_MARKS.sub("", _LINE_ENDS.sub("\n", text))
    return printable(text.encode("utf-8", "replace").decode("utf-8"))


def shown(text: str, stream: TextIO) -> str:
    """`text` as it may go to `stream`: printable where that is a terminal, else untouched."""
    return printable(text) if stream.isatty() else text
