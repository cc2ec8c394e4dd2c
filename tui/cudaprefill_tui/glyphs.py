"""Glyphs say what something is; there is a second set for terminals that know only ASCII."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Glyphs:
    active: str
    shared: str
    cached: str
    virtual: str  # a block of virtual tokens, in the colour of its state
    evicted: str
    free: str
    fills: tuple[str, ...]  # of chunks, so that neighbours differ without colour
    decode: str
    unused: str  # what is left of a budget or a bar
    hit: str  # the part of a prompt that was found in the prefix index
    left_edge: str
    right_edge: str
    waiting: str
    prefilling: str
    decoding: str
    finished: str
    failed: str
    levels: str  # of a sparkline, lowest first; the first is nothing
    target: str  # the line of a target
    up: str
    down: str
    cursor: str


UNICODE = Glyphs(
    active="■",
    shared="◆",
    cached="□",
    virtual="▣",
    evicted="\N{MULTIPLICATION SIGN}",
    free="·",
    fills=("█", "▒", "▓", "░"),
    decode="d",
    unused="·",
    hit="▒",
    left_edge="▕",
    right_edge="▏",
    waiting="○",
    prefilling="◐",
    decoding="●",
    finished="✓",
    failed="✗",
    levels=" ▁▂▃▄▅▆▇█",
    target="┄",
    up="▲",
    down="▼",
    cursor="▸",
)

ASCII = Glyphs(
    active="#",
    shared="@",
    cached="o",
    virtual="v",
    evicted="x",
    free=".",
    fills=("#", "=", "%", "+"),
    decode="d",
    unused=".",
    hit="=",
    left_edge="[",
    right_edge="]",
    waiting="o",
    prefilling="%",
    decoding="*",
    finished="v",
    failed="x",
    levels=" _.-:=+*#",
    target="-",
    up="^",
    down="v",
    cursor=">",
)
