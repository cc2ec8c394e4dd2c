"""What the dialogs share, and the small ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, TypeVar

from textual import events, on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Button, Input, Label, Static

from ..printable import displayable

Result = TypeVar("Result")
Piece = str | Content
MUTED = "$foreground 60%"
MARGIN = 12  # of a page's text: frame, padding, scrollbar, indentation
LEAST_TEXT = 30
AROUND = 7  # rows of a dialog around its body: frame, padding, a line of an error, buttons


class Dialog(ModalScreen[Result | None]):
    """A framed box with buttons; Escape leaves it with None, Enter in a field accepts.

    Subclasses give `body`, and `accept` unless there is nothing to accept.
    """

    BINDINGS: ClassVar[Any] = (Binding("escape", "cancel", "Cancel"),)

    def __init__(self, title: str, accept: str = "OK", cancel: str = "Cancel") -> None:
        super().__init__()
        self._title, self._accept, self._cancel = title, accept, cancel
        self._error = Static(Content(""), classes="error")

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog") as box:
            box.border_title = Content(displayable(self._title))
            with VerticalScroll(classes="body", can_focus=False):
                yield from self.body()
            yield self._error
            with Horizontal(classes="buttons"):
                if self._accept:
                    yield Button(self._accept, id="accept", variant="primary", compact=True)
                if self._cancel:
                    yield Button(self._cancel, id="cancel", compact=True)

    def on_resize(self, event: events.Resize) -> None:
        """The buttons are always seen: what does not fit is scrolled."""
        self.query_one(".body").styles.max_height = max(event.size.height * 9 // 10 - AROUND, 1)

    def body(self) -> Iterable[Widget]:
        raise NotImplementedError

    def result(self) -> Result:
        """Raises ValueError with what is wrong with the fields."""
        raise NotImplementedError

    @on(Button.Pressed, "#accept")
    @on(Input.Submitted)
    def accept(self) -> None:
        if not self._accept:
            return self.action_cancel()
        try:
            result = self.result()
        except ValueError as error:
            self._error.update(Content(displayable(str(error))))
            return None
        self.dismiss(result)
        return None

    @on(Button.Pressed, "#cancel")
    def action_cancel(self) -> None:
        self.dismiss(None)


class ConfirmDialog(Dialog[bool]):
    """True, or None."""

    def __init__(self, question: str, accept: str) -> None:
        super().__init__("Are you sure?", accept)
        self._question = question

    def body(self) -> Iterable[Widget]:
        yield Static(Content(displayable(self._question)))

    def result(self) -> bool:
        return True


class TextDialog(Dialog[dict[str, str]]):
    """Asks for some lines of text by name."""

    def __init__(self, title: str, accept: str, fields: dict[str, tuple[str, str]], secret: str = "") -> None:
        """fields: name -> (label, initial value). secret: the name of the one that is not shown."""
        super().__init__(title, accept)
        self._fields, self._secret = fields, secret

    def body(self) -> Iterable[Widget]:
        for name, (label, value) in self._fields.items():
            yield Label(Content(label))
            yield Input(value, id=f"field-{name}", password=name == self._secret, compact=True)

    def result(self) -> dict[str, str]:
        return {name: self.query_one(f"#field-{name}", Input).value.strip() for name in self._fields}


class TextPage(Dialog[None]):
    """Something to read."""

    def __init__(self, title: str, *texts: Content) -> None:
        super().__init__(title, accept="", cancel="Close")
        self._texts = texts

    def body(self) -> Iterable[Widget]:
        for text in self._texts:
            yield Static(text)


class Page(Dialog[None]):
    """Text that is laid out for its width. `lines` gives it."""

    def __init__(self, title: str, lines: Callable[[int], Iterable[Piece]]) -> None:
        super().__init__(title, accept="", cancel="Close")
        self._lines = lines
        self._text = Static(Content(""))

    def body(self) -> Iterable[Widget]:
        yield self._text

    def on_mount(self) -> None:
        self._lay_out(self.app.size.width)

    def on_resize(self, event: events.Resize) -> None:
        super().on_resize(event)
        self._lay_out(event.size.width)

    def _lay_out(self, columns: int) -> None:
        width = max(min(100, columns * 9 // 10) - MARGIN, LEAST_TEXT)
        self._text.update(Content("\n").join(_content(line) for line in self._lines(width)))


def _content(line: Piece) -> Content:
    return line if isinstance(line, Content) else Content(displayable(line))
