"""A menu bar with drop-down menus, for the keyboard as for the mouse."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.geometry import Offset
from textual.strip import Strip
from textual.widget import Widget

from ..cells import fit, one_line
from ..messages import MenuChosen

_KEY_NAMES = {"pagedown": "PgDn", "pageup": "PgUp", "escape": "Esc", "enter": "Enter", "space": "Space"}


@dataclass
class MenuItem:
    """An entry; `&` in its label precedes the mnemonic. `checked` is None for what cannot be checked."""

    label: str
    action: str
    key: str = ""
    enabled: bool = True
    checked: bool | None = None


@dataclass
class Menu:
    """A drop-down menu; None among its items is a rule."""

    label: str
    items: Sequence[MenuItem | None]


class MenuBar(Widget, can_focus=True):
    """Posts MenuChosen. It has the focus while a menu is open, and gives it back to who had it."""

    ALLOW_SELECT = False
    COMPONENT_CLASSES: ClassVar[set[str]] = {"menu-bar--status"}
    DEFAULT_CSS = """
    MenuBar {
        height: 1;
        dock: top;
        background: $panel;
        color: $foreground;
    }
    MenuBar > .menu-bar--status { color: $foreground 70%; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "turn(-1)", "Menu on the left", show=False),
        Binding("right", "turn(1)", "Menu on the right", show=False),
        Binding("up", "move(-1)", "Entry above", show=False),
        Binding("down", "move(1)", "Entry below", show=False),
        Binding("home", "first", "First entry", show=False),
        Binding("end", "last", "Last entry", show=False),
        Binding("enter,space", "choose", "Choose", show=False),
        Binding("escape", "close", "Close the menu"),
    ]

    def __init__(self, menus: Sequence[Menu], *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.menus = list(menus)
        self.opened: int | None = None  # index of a menu
        self._drop_down = _DropDown(self)
        self._status = ""
        self._focused_before: Widget | None = None

    def compose(self) -> ComposeResult:
        yield self._drop_down

    # --- What others ask ---

    def open(self, index: int = 0) -> None:
        """Opens a menu; when one is open, closes it, as F10 does."""
        if self.opened is not None:
            self.action_close()
            return
        self._open(index)

    def open_mnemonic(self, letter: str) -> bool:
        """Opens the menu with that mnemonic, for Alt and a letter; False when there is none."""
        for index, menu in enumerate(self.menus):
            if mnemonic(menu.label) == letter.lower():
                self._open(index)
                return True
        return False

    def set_item(self, action: str, *, enabled: bool | None = None, checked: bool | None = None) -> None:
        """Changes the state of the entries with that action."""
        for menu in self.menus:
            for item in menu.items:
                if item is not None and item.action == action:
                    item.enabled = item.enabled if enabled is None else enabled
                    item.checked = item.checked if checked is None else checked
        if self.opened is not None:
            self._drop_down.refresh()

    def show_status(self, status: str) -> None:
        """The line at the right end: model, device, address, connection. Plain text."""
        status = one_line(status)
        if status != self._status:
            self._status = status
            self.refresh()

    # --- Opening and closing ---

    @property
    def item(self) -> MenuItem | None:
        """The entry that Enter would choose."""
        return self._drop_down.item if self.opened is not None else None

    def _open(self, index: int) -> None:
        if not self.menus:
            return
        if not self.has_focus:
            self._focused_before = self.screen.focused
            self.focus()
        self.opened = index % len(self.menus)
        self._drop_down.show(self.menus[self.opened], Offset(self._starts()[self.opened], 1))
        self.refresh()

    def action_close(self) -> None:
        self._hide()
        before, self._focused_before = self._focused_before, None
        if self.has_focus:
            self.screen.set_focus(before if before is not None and before.is_attached else None)

    def _hide(self) -> None:
        if self.opened is not None:
            self.opened = None
            self._drop_down.display = False
            self.refresh()

    def on_blur(self) -> None:
        self._hide()

    # --- Keys and pointer ---

    def action_turn(self, by: int) -> None:
        self._open((self.opened if self.opened is not None else 0) + by)

    def action_move(self, by: int) -> None:
        if self.opened is None:
            self._open(0)
        else:
            self._drop_down.move(by)

    def action_first(self) -> None:
        self._drop_down.start(1)

    def action_last(self) -> None:
        self._drop_down.start(-1)

    def action_choose(self) -> None:
        item = self.item
        if item is None:
            self._open(self.opened or 0)
        elif item.enabled:
            self.action_close()
            self.post_message(MenuChosen(item.action))

    def on_key(self, event: events.Key) -> None:
        """A mnemonic chooses the entry of the open menu, else it opens a menu."""
        letter = (event.character or "").lower()
        if not letter.isalnum():
            return
        if self.opened is not None and self._drop_down.point_mnemonic(letter):
            self.action_choose()
        elif not self.open_mnemonic(letter):
            return
        event.stop()
        event.prevent_default()

    def on_click(self, event: events.Click) -> None:
        index = self._menu_at(event.x)
        if index is None or index == self.opened:
            self.action_close()
        else:
            self._open(index)

    def on_mouse_move(self, event: events.MouseMove) -> None:
        index = self._menu_at(event.x) if event.y == 0 else None
        if self.opened is not None and index is not None and index != self.opened:
            self._open(index)

    # --- The line ---

    def _starts(self) -> list[int]:
        starts = [1]
        for menu in self.menus:
            starts.append(starts[-1] + cell_len(plain(menu.label)) + 2)
        return starts

    def _menu_at(self, x: int) -> int | None:
        starts = self._starts()
        return next((index for index in range(len(self.menus)) if starts[index] <= x < starts[index + 1]), None)

    def render_line(self, y: int) -> Strip:
        base = self.rich_style
        chosen = base + Style(reverse=True)
        segments = [Segment(" ", base)]
        for index, menu in enumerate(self.menus):
            segments += _label_segments(f" {menu.label} ", chosen if index == self.opened else base)
        room = self.size.width - self._starts()[-1] - 1
        if self._status and room > 8:
            status = fit(_last_parts(self._status, room), room, "right")
            segments.append(Segment(f"{status} ", self.get_component_rich_style("menu-bar--status")))
        return Strip(segments).adjust_cell_length(self.size.width, base)


class _DropDown(Widget):
    """The entries of one menu; the bar, which has the focus, moves in them."""

    ALLOW_SELECT = False
    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "drop-down--cursor",
        "drop-down--disabled",
        "drop-down--key",
        "drop-down--rule",
    }
    DEFAULT_CSS = """
    _DropDown {
        display: none;
        overlay: screen;
        constrain: inside inside;
        border: round $primary;
        background: $panel;
        color: $foreground;
        & > .drop-down--cursor { background: $block-cursor-background; color: $block-cursor-foreground; }
        & > .drop-down--disabled { color: $foreground 40%; }
        & > .drop-down--key { color: $foreground 60%; }
        & > .drop-down--rule { color: $border; }
    }
    """

    def __init__(self, bar: MenuBar) -> None:
        super().__init__()
        self._bar = bar
        self._menu = Menu("", ())
        self._row = 0

    def show(self, menu: Menu, offset: Offset) -> None:
        self._menu = menu
        self._labels = max((cell_len(plain(item.label)) for item in menu.items if item), default=0)
        self._keys = max((cell_len(key_hint(item.key)) for item in menu.items if item), default=0)
        self.styles.width = 3 + self._labels + 2 + self._keys + 1 + 2
        self.styles.height = len(menu.items) + 2
        self.styles.offset = (offset.x, offset.y)
        self.display = True
        self.start(1)

    @property
    def item(self) -> MenuItem | None:
        return self._menu.items[self._row] if 0 <= self._row < len(self._menu.items) else None

    def start(self, direction: int) -> None:
        """To the first entry, or to the last."""
        self._row = -1 if direction > 0 else len(self._menu.items)
        self.move(direction)

    def move(self, by: int) -> None:
        """To the next entry in a direction that is no rule, round and round."""
        count = len(self._menu.items)
        for step in range(1, count + 1):
            row = (self._row + by * step) % count
            if self._menu.items[row] is not None:
                self._row = row
                break
        self.refresh()

    def point_mnemonic(self, letter: str) -> bool:
        for row, item in enumerate(self._menu.items):
            if item is not None and item.enabled and mnemonic(item.label) == letter:
                self._row = row
                self.refresh()
                return True
        return False

    def on_mouse_move(self, event: events.MouseMove) -> None:
        event.stop()
        if self._point(event):
            self.refresh()

    def on_click(self, event: events.Click) -> None:
        event.stop()
        if self._point(event):
            self._bar.action_choose()

    def on_mouse_down(self, event: events.MouseDown) -> None:
        event.stop()
        event.prevent_default()  # the bar keeps the focus

    def _point(self, event: events.MouseEvent) -> bool:
        offset = event.get_content_offset(self)
        if offset is None or not 0 <= offset.y < len(self._menu.items) or self._menu.items[offset.y] is None:
            return False
        self._row = offset.y
        return True

    def render_line(self, y: int) -> Strip:
        base, width = self.rich_style, self.size.width
        item = self._menu.items[y] if y < len(self._menu.items) else None
        if item is None:
            return Strip([Segment("─" * width, self.get_component_rich_style("drop-down--rule"))])
        key_style = self.get_component_rich_style("drop-down--key")
        if not item.enabled:
            base = key_style = self.get_component_rich_style("drop-down--disabled")
        if y == self._row:
            cursor = self.get_component_rich_style("drop-down--cursor")
            base, key_style = cursor + Style(dim=not item.enabled), cursor
        mark = {None: "   ", True: " ✓ ", False: "   "}[item.checked]
        padding = " " * (self._labels - cell_len(plain(item.label)) + 2)
        segments = [
            Segment(mark, base),
            *_label_segments(item.label, base),
            Segment(padding, base),
            Segment(f"{fit(key_hint(item.key), self._keys, 'right')} ", key_style),
        ]
        return Strip(segments).adjust_cell_length(width, base)


def _last_parts(status: str, room: int) -> str:
    """Without as many of its first parts as do not fit: whether the engine is there comes last."""
    parts = status.split(" · ")
    while len(parts) > 1 and cell_len(" · ".join(parts)) > room:
        parts.pop(0)
    return " · ".join(parts)


def plain(label: str) -> str:
    return label.replace("&", "", 1)


def mnemonic(label: str) -> str:
    _, _, rest = label.partition("&")
    return rest[:1].lower()


def key_hint(key: str) -> str:
    """ctrl+s -> ^S, f5 -> F5, ctrl+pagedown -> ^PgDn"""
    if not key:
        return ""
    *modifiers, name = key.split("+")
    prefix = "".join({"ctrl": "^", "shift": "Shift+", "alt": "Alt+"}.get(modifier, "") for modifier in modifiers)
    return prefix + _KEY_NAMES.get(name, name.upper() if len(name) <= 3 else name.capitalize())


def _label_segments(label: str, style: Style) -> list[Segment]:
    before, found, rest = label.partition("&")
    if not found or not rest:
        return [Segment(label, style)]
    return [Segment(before, style), Segment(rest[0], style + Style(underline=True)), Segment(rest[1:], style)]
