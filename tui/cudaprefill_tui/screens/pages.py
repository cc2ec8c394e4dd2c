"""Pages to read: help, about, one block, where the time of an answer went."""

from __future__ import annotations

import textwrap

from textual.content import Content

from cudaprefill.protocol.telemetry import EngineDescription, TelemetryBlock

from ..conversations import AnswerCost
from ..figures import describe_cost, milliseconds
from ..keymap import MENUS, commands
from ..printable import displayable
from .dialog import TextPage

BAR_WIDTH = 40
GLOSSARY = """\
block        16 KV slots of every layer; the map shows the whole pool
token budget the most tokens one step computes; decodes come first
chunk        the part of one prompt computed in one step
prefix hit   full blocks found by their hash, shared instead of computed
TTFT         from receipt of the request to its first token; queueing counts
ITL          the gap between two tokens of one request"""
HEX_LENGTH = 16


def help_page(with_chat: bool, is_playback: bool) -> TextPage:
    lines = []
    for menu in MENUS:
        for command in commands(with_chat, is_playback):
            if command.menu == menu:
                keys = command.keys.split(",")[0].replace("ctrl+", "^").replace("shift+", "⇧")
                lines.append(f"{keys.upper() if keys.startswith('f') else keys:10} {command.title:30} {command.help}")
        lines.append("")
    typing = "Enter sends · Shift+Enter or Ctrl+J starts a line · PageUp and PageDown move the conversation\n"
    return TextPage("Help", Content(typing if with_chat else ""), Content("\n".join(lines)), Content(GLOSSARY))


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
        "KV cache": f"{engine.num_blocks:,} blocks of {engine.block_size} tokens, {engine.block_bytes:,} bytes each",
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
