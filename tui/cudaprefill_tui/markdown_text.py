"""Markdown as styled text: a paragraph, a list, a table or a piece of code is one Content each.

Textual's own Markdown makes a widget of every list item, bullet and table cell, and each new token lays all of them
out again: thousands in a long answer. Here an answer is a few widgets however long it is. Nothing of it is lost: HTML
is shown as it stands.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.cells import cell_len
from textual.content import Content
from textual.highlight import highlight

BULLETS = "•◦▪"
INDENT = "  "
INLINE_STYLES = {"strong_open": "bold", "em_open": "italic", "s_open": "strike", "link_open": "underline"}
CODE_STYLE = "$accent"
HEADING_STYLES = {"h1": "bold underline $primary", "h2": "bold $primary"}
QUIET = "$foreground 60%"

_PARSER = MarkdownIt("gfm-like", {"html": False})


@dataclass(frozen=True)
class Block:
    """A top-level part of a document, and the line that it starts in, counted from 0.

    fence: the line that opened it, where it is code whose end has not come yet; else "".
    """

    content: Content
    line: int
    fence: str = ""


def parse_blocks(source: str) -> list[Block]:
    """Lines end with "\\n" alone, as `printable.displayable` leaves them."""
    tokens = _PARSER.parse(source)
    lines = source.split("\n")
    blocks = []
    for part in _top_level(tokens):
        first, last = part[0].map or [0, 0]
        is_open = part[0].type == "fence" and not _is_closed(lines[first:last], part[0].markup)
        blocks.append(Block(_render(part), first, lines[first] if is_open else ""))
    return blocks


def join_blocks(blocks: Sequence[Block]) -> Content:
    return Content("\n\n").join(block.content for block in blocks)


def _is_closed(lines: list[str], markup: str) -> bool:
    end = next((line.strip() for line in reversed(lines[1:]) if line.strip()), "")
    return len(end) >= len(markup) and not end.strip(markup[0])


def _top_level(tokens: Sequence[Token]) -> Iterator[list[Token]]:
    part: list[Token] = []
    for token in tokens:
        part.append(token)
        if token.level == 0 and token.nesting <= 0:
            yield part
            part = []


def _render(tokens: Sequence[Token]) -> Content:
    """A part that begins with its opening token and ends with the closing one, or is a single token."""
    first = tokens[0]
    if first.type in ("fence", "code_block"):
        return highlight(first.content.rstrip("\n"), language=first.info.split(" ")[0] or "text")
    if first.type == "hr":
        return Content.styled("─" * 20, QUIET)
    inside = tokens[1:-1]
    if first.type == "heading_open":
        return _inline(inside[0]).stylize_before(HEADING_STYLES.get(first.tag, "bold"))
    if first.type in ("bullet_list_open", "ordered_list_open"):
        return _list(first, inside)
    if first.type == "blockquote_open":
        return _indented(_blocks(inside), "▎ ", "▎ ").stylize_before("italic")
    if first.type == "table_open":
        return _table(inside)
    return _blocks(inside) if inside else Content(first.content)


def _blocks(tokens: Sequence[Token], separator: str = "\n\n") -> Content:
    """Parts of any level, one below the other."""
    return Content(separator).join(
        _inline(part[0]) if part[0].type == "inline" else _render(part) for part in _parts(tokens)
    )


def _parts(tokens: Sequence[Token]) -> Iterator[list[Token]]:
    part: list[Token] = []
    depth = 0
    for token in tokens:
        part.append(token)
        depth += token.nesting
        if depth == 0:
            yield part
            part = []


def _inline(token: Token) -> Content:
    pieces: list[Content] = []
    styles: list[str] = []
    for child in token.children or []:
        if child.type in INLINE_STYLES:
            styles.append(INLINE_STYLES[child.type])
        elif child.nesting < 0:
            if styles:
                styles.pop()
        elif child.type in ("softbreak", "hardbreak"):
            pieces.append(Content(" " if child.type == "softbreak" else "\n"))
        else:
            text = child.content or child.attrGet("alt") or ""
            style = " ".join([*styles, CODE_STYLE] if child.type == "code_inline" else styles)
            pieces.append(Content.styled(str(text), style) if style else Content(str(text)))
    return Content("").join(pieces)


def _list(opening: Token, tokens: Sequence[Token]) -> Content:
    number = int(opening.attrGet("start") or 1) if opening.type == "ordered_list_open" else None
    depth = opening.level // 2
    items = []
    for part in _parts(tokens):
        mark = f"{number}." if number is not None else BULLETS[depth % len(BULLETS)]
        head, rest = f"{mark} ", " " * (len(mark) + 1)
        items.append(_indented(_blocks(part[1:-1], "\n"), head, rest))
        number = number + 1 if number is not None else None
    return Content("\n").join(items)


def _indented(content: Content, head: str, rest: str) -> Content:
    lines = content.split("\n", allow_blank=True) or [Content("")]
    return Content("\n").join(
        Content.assemble((head if place == 0 else rest, QUIET), line) for place, line in enumerate(lines)
    )


def _table(tokens: Sequence[Token]) -> Content:
    rows: list[list[Content]] = []
    for token in tokens:
        if token.type == "tr_open":
            rows.append([])
        elif token.type == "inline":
            rows[-1].append(_inline(token))
    widths = [max(cell_len(row[column].plain) for row in rows if column < len(row)) for column in range(len(rows[0]))]
    lines = [
        Content(INDENT).join(_padded(cell, width) for cell, width in zip(row, widths, strict=False)) for row in rows
    ]
    lines[0] = lines[0].stylize_before("bold")
    return Content("\n").join([lines[0], Content.styled("─" * (sum(widths) + 2 * len(widths) - 2), QUIET), *lines[1:]])


def _padded(cell: Content, width: int) -> Content:
    return Content.assemble(cell, " " * (width - cell_len(cell.plain)))
