"""Colour says whose: each request keeps one of Okabe and Ito's colours for its life."""

from __future__ import annotations

from functools import lru_cache

from rich.style import Style

from .themes import BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILLION, YELLOW

# Neighbours in number are far apart in hue and in lightness.
ON_DARK = (SKY, ORANGE, GREEN, PURPLE, YELLOW, "#4C9BE8", VERMILLION)
# Sky blue and yellow vanish on white.
ON_LIGHT = (BLUE, "#B87A00", "#007A59", "#A8528A", "#8A7B00", "#2B8CC4", VERMILLION)


@lru_cache(maxsize=1024)
def request_style(number: int, dark: bool, highlighted: bool = False) -> Style:
    """Whose it is; what is highlighted stands out without colour too."""
    cycle = ON_DARK if dark else ON_LIGHT
    return Style(color=cycle[number % len(cycle)], bold=highlighted or None, reverse=highlighted or None)
