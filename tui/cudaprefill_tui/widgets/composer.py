"""The input line of a conversation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from textual import events
from textual.binding import Binding
from textual.message import Message
from textual.widgets import TextArea

NEWLINE_KEYS = ("shift+enter", "ctrl+j", "alt+enter")  # what terminals can tell from Enter differs


class Composer(TextArea):
    """Grows with its text. Enter sends; Shift+Enter, Alt+Enter or Ctrl+J start a new line."""

    BINDINGS: ClassVar[Any] = (
        Binding("enter", "send", "Send", tooltip="Ask"),
        Binding("pageup", "scroll_chat(-1)", "Earlier", show=False),
        Binding("pagedown", "scroll_chat(1)", "Later", show=False),
    )

    @dataclass
    class Sent(Message):
        """Enter was pressed on this text."""

        text: str

    @dataclass
    class Scrolled(Message):
        """The conversation shall move by so many pages."""

        pages: int

    def __init__(self) -> None:
        super().__init__(
            soft_wrap=True, show_line_numbers=False, tab_behavior="focus", placeholder="Ask something", compact=True
        )
        self.cursor_blink = False  # twice a second a redraw, over a slow line too

    async def _on_key(self, event: events.Key) -> None:
        if event.key == "enter":
            event.stop()
            event.prevent_default()
            self.action_send()
        elif event.key in NEWLINE_KEYS:
            event.stop()
            event.prevent_default()
            self.insert("\n")
        else:
            await super()._on_key(event)

    def action_send(self) -> None:
        self.post_message(self.Sent(self.text))

    def action_scroll_chat(self, pages: int) -> None:
        self.post_message(self.Scrolled(pages))
