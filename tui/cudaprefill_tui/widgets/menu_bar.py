"""A menu bar with drop-down menus, for the keyboard as for the mouse."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from textual.widget import Widget


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


class MenuBar(Widget):
    """Posts MenuChosen."""

    DEFAULT_CSS = "MenuBar { height: 1; dock: top; }"

    def __init__(self, menus: Sequence[Menu], *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.menus = list(menus)

    def open(self, index: int = 0) -> None:
        """Opens a menu, as F10 does."""

    def set_item(self, action: str, *, enabled: bool | None = None, checked: bool | None = None) -> None:
        """Changes the state of the entries with that action."""

    def show_status(self, status: str) -> None:
        """The line at the right end: model, device, address, connection. Plain text."""
