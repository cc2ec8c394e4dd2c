"""Colour says whose: each request keeps one of Okabe and Ito's colours for its life."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from rich.style import Style
from textual.app import App

from .themes import BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILLION, YELLOW

Palette = tuple[str, ...]

# Neighbours in number are far apart in hue and in lightness.
ON_DARK: Palette = (SKY, ORANGE, GREEN, PURPLE, YELLOW, "#4C9BE8", VERMILLION)
# Sky blue and yellow vanish on white.
ON_LIGHT: Palette = (BLUE, "#B87A00", "#007A59", "#A8528A", "#8A7B00", "#2B8CC4", VERMILLION)
# Of a terminal with 16 colours; the others would fall together there.
FEW_ON_DARK: Palette = ("#55FFFF", "#AA5500", "#55FF55", "#FF55FF", "#FFFF55", "#5555FF", "#FF5555")
FEW_ON_LIGHT: Palette = ("#0000AA", "#AA5500", "#00AA00", "#AA00AA", "#555555", "#00AAAA", "#AA0000")


def palette_of(app: App[Any]) -> Palette:
    """The one for an application's theme and terminal."""
    dark = bool(app.current_theme.dark)
    if app.console.color_system in ("standard", "windows"):
        return FEW_ON_DARK if dark else FEW_ON_LIGHT
    return ON_DARK if dark else ON_LIGHT


@lru_cache(maxsize=1024)
def request_style(number: int, palette: Palette, highlighted: bool = False) -> Style:
    """Whose it is; what is highlighted stands out without colour too."""
    return Style(color=palette[number % len(palette)], bold=highlighted or None, reverse=highlighted or None)
