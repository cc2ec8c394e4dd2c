"""Markdown as a model writes it: nothing of it is lost, nothing of it acts."""

from __future__ import annotations

from markdown_it import MarkdownIt
from textual.widgets import Markdown


class AnswerMarkdown(Markdown):
    """HTML is shown as it stands, and a click on a link opens nothing."""

    def __init__(self, text: str = "") -> None:
        super().__init__(text, parser_factory=_parser, open_links=False)


def _parser() -> MarkdownIt:
    return MarkdownIt("gfm-like", {"html": False})
