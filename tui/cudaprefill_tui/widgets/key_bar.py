"""The line of keys at the bottom."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from rich.cells import cell_len
from rich.segment import Segment
from textual import events
from textual.binding import ActiveBinding
from textual.screen import Screen
from textual.strip import Strip
from textual.widget import Widget

FIRST, LAST = ("help.help",), ("help.menu", "file.quit")  # always there: who knows these finds the rest


@dataclass(frozen=True)
class Entry:
    """A key and what it does, in a word or two."""

    id: str
    key: str  # as it is pressed
    display: str
    words: str
    tooltip: str

    @property
    def width(self) -> int:
        return cell_len(self.display) + cell_len(self.words) + 3


class KeyBar(Widget):
    """What keys do now: those of the widget in focus before those that work everywhere, as many as fit, each whole.

    One line that is drawn: Textual's Footer makes a widget a key, anew with every change of the focus.
    """

    ALLOW_SELECT = False
    COMPONENT_CLASSES: ClassVar[set[str]] = {"key-bar--key", "key-bar--words", "key-bar--hover"}
    DEFAULT_CSS = """
    KeyBar { height: 1; background: $footer-background; }
    KeyBar > .key-bar--key { color: $footer-key-foreground; text-style: bold; background: $footer-background; }
    KeyBar > .key-bar--words { color: $foreground; background: $footer-background; }
    KeyBar > .key-bar--hover { color: $foreground; background: $primary 30%; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._entries: list[Entry] = []
        self._hovered = -1

    def on_mount(self) -> None:
        self.screen.bindings_updated_signal.subscribe(self, self._update)
        self._update(self.screen)

    @property
    def entries(self) -> list[Entry]:
        """Those that fit, from the left."""
        first = [entry for entry in self._entries if entry.id in FIRST]
        last = sorted((entry for entry in self._entries if entry.id in LAST), key=lambda entry: LAST.index(entry.id))
        left = self.size.width - sum(entry.width for entry in first + last)
        others = []
        for entry in self._entries:
            if entry.id not in FIRST + LAST and entry.width <= left:
                left -= entry.width
                others.append(entry)
        return first + others + last

    def _update(self, screen: Screen[Any]) -> None:
        """A binding of several keys is shown once."""
        if not self.is_attached or screen is not self.screen:
            return
        shown = {
            (binding.node, binding.binding.action): self._entry(binding)
            for binding in reversed(self.screen.active_bindings.values())
            if binding.binding.show and binding.enabled
        }
        entries = list(reversed(shown.values()))
        if entries != self._entries:
            self._entries = entries
            self._hovered = -1
            self.refresh()

    def _entry(self, active: ActiveBinding) -> Entry:
        binding = active.binding
        return Entry(
            binding.id or "",
            binding.key,
            self.app.get_key_display(binding),
            binding.description,
            active.tooltip or binding.tooltip or binding.description,
        )

    def _place_at(self, x: int) -> int:
        end = 0
        for place, entry in enumerate(self.entries):
            end += entry.width
            if x < end:
                return place
        return -1

    def on_mouse_move(self, event: events.MouseMove) -> None:
        place = self._place_at(event.x)
        if place != self._hovered:
            self._hovered = place
            self.tooltip = self.entries[place].tooltip if place >= 0 else None
            self.refresh()

    def on_leave(self, event: events.Leave) -> None:
        self._hovered = -1
        self.refresh()

    def on_click(self, event: events.Click) -> None:
        place = self._place_at(event.x)
        if place >= 0:
            self.app.simulate_key(self.entries[place].key)

    def render_line(self, y: int) -> Strip:
        key, words = self.get_component_rich_style("key-bar--key"), self.get_component_rich_style("key-bar--words")
        hover = self.get_component_rich_style("key-bar--hover")
        segments = []
        for place, entry in enumerate(self.entries):
            lit = place == self._hovered
            segments.append(Segment(f" {entry.display}", key + hover if lit else key))
            segments.append(Segment(f" {entry.words} ", hover if lit else words))
        return Strip(segments).adjust_cell_length(self.size.width, words)
