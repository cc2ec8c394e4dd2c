"""A conversation as a Markdown file."""

from __future__ import annotations

import re
from pathlib import Path

from .conversations import Conversation
from .figures import describe_cost


def as_markdown(conversation: Conversation, model: str) -> str:
    """Prompts as quotations, answers as they came, what each cost in italics below it."""
    parts = [f"# {conversation.title}", f"Answered by {model}." if model else ""]
    if conversation.settings.system:
        parts += ["System prompt:", _quoted(conversation.settings.system)]
    for turn in conversation.turns:
        parts += [_quoted(turn.prompt), turn.answer.text]
        if turn.answer.error:
            parts.append(f"*{turn.answer.error}*")
        if turn.answer.cost:
            parts.append(f"*{describe_cost(turn.answer.cost)}*")
    return "\n\n".join(part for part in parts if part) + "\n"


def suggested_name(conversation: Conversation) -> str:
    """A file name that no shell stumbles over."""
    words = re.sub(r"[^\w]+", "-", conversation.title).strip("-").lower()
    return f"{words or 'chat'}.md"


def write_export(path: Path, text: str, *, overwrite: bool = False) -> None:
    """Raises OSError; FileExistsError unless `overwrite`."""
    with path.open("w" if overwrite else "x", encoding="utf-8", errors="replace") as file:
        file.write(text)


def _quoted(text: str) -> str:
    return "\n".join(f"> {line}".rstrip() for line in text.splitlines())
