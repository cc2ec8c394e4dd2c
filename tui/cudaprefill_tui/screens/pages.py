"""Pages to read: help, about, one block, where the time of an answer went."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from textual.content import Content

from cudaprefill.protocol.telemetry import EngineDescription, TelemetryBlock

from ..cells import wrap_words
from ..conversations import AnswerCost
from ..figures import describe_cost, milliseconds
from ..keymap import MENUS, Command, commands
from ..printable import displayable
from ..widgets.menu_bar import key_hint
from .dialog import MUTED, Page, Piece, TextPage

BAR_WIDTH = 40
KEYS, NAME, LEAST_HELP, WORD = 10, 28, 30, 14  # cells
GLOSSARY = {
    "block": "16 KV slots of every layer; the map shows the whole pool",
    "token budget": "the most tokens one step computes; decodes come first",
    "chunk": "the part of one prompt computed in one step",
    "prefix hit": "full blocks found by their hash, shared instead of computed",
    "TTFT": "from receipt of the request to its first token; queueing counts",
    "ITL": "the gap between two tokens of one request",
}
HEX_LENGTH = 16


def help_page(with_chat: bool, is_playback: bool) -> Page:
    return Page("Help", lambda width: _help_lines(commands(with_chat, is_playback), with_chat, width))


def _help_lines(known: Sequence[Command], with_chat: bool, width: int) -> Iterable[Piece]:
    """A command with its keys and, where there is room beside it, what it does."""
    if with_chat:
        yield from wrap_words("Enter sends · Shift+Enter or Ctrl+J starts a line · PageUp and PageDown scroll", width)
    room = width - KEYS - NAME
    for menu in MENUS:
        entries = [command for command in known if command.menu == menu]
        if entries:
            yield ""
            yield Content.styled(menu, "bold $accent")
        for command in entries:
            keys = " ".join(key_hint(key) for key in command.keys.split(",")[:1])
            first, *rest = wrap_words(command.help, room if room >= LEAST_HELP else width - KEYS)
            name = Content.assemble((f"{keys:{KEYS}}", "bold"), f"{command.title:{NAME}}")
            if room >= LEAST_HELP:
                yield Content.assemble(name, (first, MUTED))
                yield from (Content.styled(f"{'':{KEYS + NAME}}{line}", MUTED) for line in rest)
            else:
                yield name
                yield from (Content.styled(f"{'':{KEYS}}{line}", MUTED) for line in (first, *rest))
    yield ""
    yield Content.styled("Words", "bold $accent")
    for word, meaning in GLOSSARY.items():
        first, *rest = wrap_words(meaning, width - WORD)
        yield Content.assemble((f"{word:{WORD}}", "bold"), (first, MUTED))
        yield from (Content.styled(f"{'':{WORD}}{line}", MUTED) for line in rest)


def about_page(engine: EngineDescription | None, url: str) -> TextPage:
    if engine is None:
        return TextPage(
            "About", Content("cudaprefill: an LLM engine whose prefill you can see.\nNo server is attached.")
        )
    rows = {
        "version": engine.version,
        "server": url,
        "model": f"{engine.model} ({engine.family}, {engine.num_parameters:,} parameters, {engine.dtype})",
        "device": f"{engine.device}, {engine.kernels} kernels, {engine.threads} threads",
        "KV cache": f"{engine.num_blocks:,} blocks of {engine.block_size} tokens, {engine.block_bytes:,} bytes each, "
        f"{engine.kv_cache_dtype}",
        "context": f"{engine.max_model_len:,} tokens, at most {engine.max_num_seqs} requests at once",
        "prefix cache": "on" if engine.enable_prefix_caching else "off",
    }
    text = "\n".join(f"{name:13} {value}" for name, value in rows.items())
    return TextPage("cudaprefill: an LLM engine whose prefill you can see", Content(displayable(text)))


def block_page(block: TelemetryBlock) -> TextPage:
    rows = {
        "state": block.state,
        "references": f"{block.reference_count}",
        "requests": ", ".join(block.owners) or "none",
        "last used": f"{block.age} step{'s' if block.age != 1 else ''} ago",
        "hash": block.hash[:HEX_LENGTH] if block.hash else "none: it was not published",
        "tokens": f"{len(block.token_ids)}: {' '.join(map(str, block.token_ids))}",
    }
    if block.virtual_tokens:
        rows["virtual"] = f"{block.virtual_tokens} tokens before these"
    if block.adapter is not None:
        rows["adapter"] = block.adapter
    text = "\n".join(
        textwrap.fill(f"{name:11} {value}", 70, subsequent_indent=" " * 12) for name, value in rows.items()
    )
    return TextPage(f"Block {block.block}", Content(displayable(text)), Content(displayable(f"\n{block.text}")))


def cost_page(cost: AnswerCost, reason: str) -> TextPage:
    """The TTFT drawn as bars, each where its part lies in time. `reason`: why no more than this is known."""
    parts = [("queue", cost.queue), ("prefill", cost.prefill), ("first sample", cost.first_sample)]
    known = [(name, seconds) for name, seconds in parts if seconds is not None]
    total, start, lines = sum(seconds for _, seconds in known), 0.0, []
    for name, seconds in known:
        before = round(start / total * BAR_WIDTH) if total else 0
        length = round((start + seconds) / total * BAR_WIDTH) - before if total else 0
        bar = f"{' ' * before}{'█' * length or '▏'}".ljust(BAR_WIDTH + 1)
        lines.append(f"{name:13}{bar} {milliseconds(seconds):>9} {seconds / total if total else 0:4.0%}")
        start += seconds
    return TextPage(
        "Where the time went", Content("\n".join(lines)), Content(displayable(f"\n{describe_cost(cost)}\n\n{reason}"))
    )
