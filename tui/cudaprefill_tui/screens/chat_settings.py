"""Who answers a conversation, its system prompt and sampling."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from textual.widget import Widget
from textual.widgets import Input, Label, TextArea

from ..conversations import ChatSettings
from .dialog import Dialog


class ChatSettingsDialog(Dialog[ChatSettings]):
    def __init__(self, settings: ChatSettings) -> None:
        super().__init__("Settings of this conversation", "Apply")
        self._settings = settings

    def body(self) -> Iterable[Widget]:
        settings = self._settings
        yield Label("System prompt")
        yield TextArea(settings.system, id="system", soft_wrap=True, tab_behavior="focus", show_line_numbers=False)
        yield Label("Temperature (0 answers greedily)")
        yield Input(f"{settings.temperature:g}", id="temperature", type="number", compact=True)
        yield Label("Top-p (1 takes all)")
        yield Input(f"{settings.top_p:g}", id="top-p", type="number", compact=True)
        yield Label("Longest answer, tokens (empty: what the context allows)")
        longest = "" if settings.max_tokens is None else str(settings.max_tokens)
        yield Input(longest, id="max-tokens", type="integer", compact=True)
        yield Label("Adapter that answers (empty: the model)")
        yield Input(settings.model or "", id="model", compact=True)

    def result(self) -> ChatSettings:
        longest = self.query_one("#max-tokens", Input).value.strip()
        return replace(
            self._settings,
            model=self.query_one("#model", Input).value.strip() or None,
            system=self.query_one("#system", TextArea).text.strip(),
            temperature=self._number("temperature", "the temperature", 0.0, 2.0),
            top_p=self._number("top-p", "top-p", 0.0, 1.0),
            max_tokens=int(self._number("max-tokens", "the longest answer", 1, 1e9)) if longest else None,
        )

    def _number(self, name: str, title: str, least: float, most: float) -> float:
        text = self.query_one(f"#{name}", Input).value
        try:
            value = float(text)
        except ValueError:
            raise ValueError(f"{title} must be a number, got {text!r}") from None
        if not least <= value <= most:
            raise ValueError(f"{title} must lie in {least:g} .. {most:g}, got {value:g}")
        return value
