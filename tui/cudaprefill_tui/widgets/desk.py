"""The desktop's panes and how they share the screen.

desktop              wide                         tabs
┌───────┬────────┐   ┌───────┬────────┬───────┐   ┌ Chat │ Steps │ ... ┐
│       │ Steps  │   │       │ Steps  │ Blocks│   │                    │
│       │Requests│   │ Chat  │        │       │   │                    │
│ Chat  │ Blocks │   │       │Requests│Latency│   │ the pane in focus  │
│       │Latency*│   │       │        │   *   │   │                    │
└───────┴────────┘   └───────┴────────┴───────┘   └────────────────────┘
                         * shares its place with Engine and Load
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from textual import events, on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Static, Tab, Tabs

from ..glyphs import Glyphs
from ..messages import PanesShown, SplitMoved
from ..preferences import Preferences
from .blocks_pane import BlocksPane
from .chat_pane import ChatPane
from .engine_pane import EnginePane
from .latency_pane import LatencyPane
from .load_pane import LoadPane
from .pane import Pane
from .requests_pane import RequestsPane
from .splitter import Split
from .steps_pane import StepsPane

Mode = Literal["wide", "desktop", "tabs", "too-small"]
WIDE_COLUMNS = 170
MIN_DESKTOP = (80, 20)  # columns, rows; below: tabs
MIN_TABS = (36, 9)  # below: a message
TITLES = {
    "chat": "Chat",
    "steps": "Steps",
    "blocks": "Blocks",
    "requests": "Requests",
    "latency": "Latency",
    "engine": "Engine",
    "load": "Load",
}
LOWER = ("latency", "engine", "load")
SPLITS = {"split-chat": 0.46, "split-engine": 0.5, "split-left": 0.5, "split-right": 0.55}
WIDE_CHAT = 0.36  # lines of text are read best when they are not too long


class Desk(Vertical):
    """Panes by id: chat (unless `chat` is None), steps, blocks, requests, latency, engine, load."""

    def __init__(self, chat: ChatPane | None, preferences: Preferences, glyphs: Glyphs) -> None:
        super().__init__(id="desk")
        self._preferences = preferences
        kinds: dict[str, type[Pane]] = {
            "steps": StepsPane,
            "blocks": BlocksPane,
            "requests": RequestsPane,
            "latency": LatencyPane,
            "engine": EnginePane,
            "load": LoadPane,
        }
        panes = [kind(glyphs=glyphs, id=name) for name, kind in kinds.items()]
        self.glyphs = glyphs
        self.panes: dict[str, Pane] = {"chat": chat} if chat is not None else {}
        self.panes |= {str(pane.id): pane for pane in panes}
        self.mode: Mode = "desktop"
        self.current = next(iter(self.panes))  # the pane that had the focus last
        self._front = LOWER[0]  # of those that share a place
        self.zoomed = False
        self.hidden = {name for name in preferences.hidden if name in self.panes}
        self.visible_panes: list[Pane] = []  # those that somebody sees now: the others need no news
        self._splits: dict[str, Split] = {}
        self._lower = Vertical(
            Tabs(*(Tab(Content(TITLES[name]), id=f"show-{name}") for name in LOWER), id="lower-tabs"),
            *(self.panes[name] for name in LOWER),
            id="lower",
        )

    def compose(self) -> ComposeResult:
        panes = self.panes
        pane_tabs = Tabs(*(Tab(Content(TITLES[name]), id=f"show-{name}") for name in panes), id="pane-tabs")
        pane_tabs.can_focus = False  # it would take the focus back from the pane whose tab was clicked
        yield pane_tabs
        left = self._split("split-left", panes["steps"], panes["requests"], "vertical", 4, 4)
        right = self._split("split-right", panes["blocks"], self._lower, "vertical", 4, 4)
        whole = self._split("split-engine", left, right, "vertical", 8, 8)
        yield self._split("split-chat", panes["chat"], whole, "horizontal", 24, 30) if "chat" in panes else whole
        yield Static(Content("This terminal is too small.\nMake it larger, or leave with Ctrl+Q."), id="too-small")

    def _split(
        self,
        name: str,
        first: Widget,
        second: Widget,
        direction: Literal["horizontal", "vertical"],
        min_first: int,
        min_second: int,
    ) -> Split:
        share = self._preferences.splits.get(name, SPLITS[name])
        split = Split(
            first,
            second,
            direction=direction,
            fraction=share if 0.0 < share < 1.0 else SPLITS[name],
            min_first=min_first,
            min_second=min_second,
            id=name,
        )
        self._splits[name] = split
        return split

    @property
    def steps(self) -> StepsPane:
        pane = self.panes["steps"]
        assert isinstance(pane, StepsPane)
        return pane

    @property
    def requests(self) -> RequestsPane:
        pane = self.panes["requests"]
        assert isinstance(pane, RequestsPane)
        return pane

    # --- What is seen ---

    def on_mount(self) -> None:
        self.lay_out()

    def on_resize(self, event: events.Resize) -> None:
        columns, rows = event.size
        if columns < MIN_TABS[0] or rows < MIN_TABS[1]:
            mode: Mode = "too-small"
        elif columns < MIN_DESKTOP[0] or rows < MIN_DESKTOP[1]:
            mode = "tabs"
        else:
            mode = "wide" if columns >= WIDE_COLUMNS else "desktop"
        if mode != self.mode:
            self.mode = mode
            self.lay_out()

    def is_visible(self, name: str) -> bool:
        if self.mode == "tabs" or self.zoomed:
            return name == self.current
        return name not in self.hidden

    def lay_out(self) -> None:
        """Brings the widgets into line with mode, zoom and hidden panes."""
        lower = [name for name in LOWER if self.is_visible(name)]
        if self.current in lower:
            self._front = self.current
        elif lower and self._front not in lower:
            self._front = lower[0]
        self.visible_panes, before = [], self.visible_panes
        for name, pane in self.panes.items():
            pane.display = self.is_visible(name) and (name not in LOWER or name == self._front)
            if pane.display and self.mode != "too-small":
                self.visible_panes.append(pane)
        self._lower.display = bool(lower)
        lower_tabs = self.query_one("#lower-tabs", Tabs)
        lower_tabs.display = self.mode != "tabs"
        for name in LOWER:
            (lower_tabs.show if name in lower else lower_tabs.hide)(f"show-{name}")
        lower_tabs.active = f"show-{self._front}"
        self._splits["split-engine"].direction = (
            "horizontal" if self.mode == "wide" or "chat" not in self.panes else "vertical"
        )
        if "split-chat" in self._splits and "split-chat" not in self._preferences.splits:
            self._splits["split-chat"].fraction = WIDE_CHAT if self.mode == "wide" else SPLITS["split-chat"]
        for name in ("split-left", "split-right", "split-engine", "split-chat"):
            if name in self._splits:
                split = self._splits[name]
                split.display = any(child.display for child in self._parts(split)) and self.mode != "too-small"
                split.refresh(layout=True)
        tabs = self.query_one("#pane-tabs", Tabs)
        tabs.display = self.mode == "tabs"
        tabs.active = f"show-{self.current}"
        self.query_one("#too-small").display = self.mode == "too-small"
        if self.visible_panes != before:
            self.post_message(PanesShown())

    def _parts(self, split: Split) -> Iterable[Widget]:
        return (child for child in split.children if isinstance(child, (Split, Vertical)))

    # --- What the person does ---

    def show(self, name: str) -> None:
        """Brings a pane to the front, hidden or not, and gives it the focus.

        At once: a key that follows finds it there however far the drawing is behind.
        """
        self.current = name
        self.hidden.discard(name)
        self.lay_out()
        pane = self.panes[name]
        if not pane.has_focus_within:
            self.screen.set_focus(pane.focus_target)

    def take_focus(self) -> None:
        """If nothing has it: a pane that is shown for the first time has nothing that takes keys before it is told what
        to show.
        """
        if self.screen.focused is None and self.panes[self.current].display:
            self.screen.set_focus(self.panes[self.current].focus_target)

    def toggle(self, name: str) -> None:
        """Hides a pane, or shows it again. The last one that is seen stays."""
        if name in self.hidden:
            self.hidden.discard(name)
        elif len(self.hidden) < len(self.panes) - 1:
            self.hidden.add(name)
        if self.current in self.hidden:
            self.zoomed = False
            self.show(next(other for other in self.panes if other not in self.hidden))
        else:
            self.lay_out()

    def zoom(self) -> None:
        self.zoomed = not self.zoomed
        self.lay_out()

    def move_focus(self, places: int) -> None:
        names = [name for name in self.panes if name not in self.hidden or self.mode == "tabs"]
        self.show(names[(names.index(self.current) + places) % len(names)] if self.current in names else names[0])

    def reset(self) -> None:
        self.hidden.clear()
        self.zoomed = False
        for name, split in self._splits.items():
            split.fraction = SPLITS[name]
        self._preferences.splits.clear()
        self.lay_out()

    def remember(self) -> None:
        """Into the preferences that it was given; dividers are there since they were moved."""
        self._preferences.hidden = sorted(self.hidden)

    # Messages tell of what was: by now another pane may have been shown, and another tab be active.

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        if event.widget is self.screen.focused:
            for ancestor in event.widget.ancestors_with_self:
                if isinstance(ancestor, Pane) and ancestor.display and ancestor.id in self.panes:
                    self.current = str(ancestor.id)

    @on(Tabs.TabActivated, "#pane-tabs, #lower-tabs")
    def _tab_chosen(self, event: Tabs.TabActivated) -> None:
        event.stop()
        tabs, name = event.tabs, str(event.tab.id).removeprefix("show-")
        if not tabs.display or event.tab.id != tabs.active:
            return
        if tabs.id == "lower-tabs" and name != self._front:
            self.current = name
            self.lay_out()
        elif tabs.id == "pane-tabs" and not self.panes[name].display:
            self.show(name)

    @on(SplitMoved)
    def _split_moved(self, message: SplitMoved) -> None:
        if message.split in self._splits:
            self._preferences.splits[str(message.split)] = message.fraction
