"""What terminals are sent that show only ASCII, or whose encoding holds little more."""

from __future__ import annotations

import re
from collections.abc import Callable

from rich.cells import cell_len

# Signs that we and Textual draw with, a cell each. Letters of prompts and answers are not among them.
SIGNS = {
    "".join(map(chr, range(0x2500, 0x2580))): "+",  # box drawing; straight lines follow
    "─━┄┅┈┉╌╍═╴╶╸╺╼╾▔‾": "-",
    "│┃┆┇┊┋║╎╏╵╷╹╻╽╿▏▕▎▍▌▐": "|",
    "█▇▆■▉▊▋": "#",
    "▓▅": "%",
    "▒▄▃": "=",
    "░▂": ":",
    "▁": "_",
    "▀": '"',
    "◆": "@",
    "□○◌⭘": "o",
    "●•◐⬤": "*",
    "·": ".",
    "\N{MULTIPLICATION SIGN}✕✗": "x",
    "✓▣": "v",
    "…": "~",
    "“”„": '"',
    "\N{LEFT SINGLE QUOTATION MARK}\N{RIGHT SINGLE QUOTATION MARK}": "'",
    "\N{EN DASH}—": "-",
    "→▸▶▹▷": ">",
    "←◂◀": "<",
    "▲↑⇧": "^",
    "▼↓⏎": "v",
    "⏸": "=",
}
_TABLE = {ord(sign): replacement for signs, replacement in SIGNS.items() for sign in signs}
_OTHER = re.compile(r"[^\x00-\x7f]+")


def ascii_translator(encoding: str) -> Callable[[str], str]:
    """Makes of what is drawn what such a terminal can show, cell for cell; letters stay where `encoding` has them."""

    def replace(match: re.Match[str]) -> str:
        return "".join(character if _has(character) else "?" * cell_len(character) for character in match[0])

    def _has(character: str) -> bool:
        try:
            character.encode(encoding)
        except UnicodeEncodeError:
            return False
        return True

    def translate(text: str) -> str:
        return text if text.isascii() else _OTHER.sub(replace, text.translate(_TABLE))

    return translate
