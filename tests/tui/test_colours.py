"""Requests differ in colour on every kind of terminal."""

from __future__ import annotations

import itertools

import pytest
from rich.color import Color, ColorSystem

from cudaprefill_tui.colours import FEW_ON_DARK, FEW_ON_LIGHT, ON_DARK, ON_LIGHT, Palette, request_style


def luminance(colour: str) -> float:
    """Relative luminance as WCAG 2 defines it."""
    parts = [part / 255 for part in Color.parse(colour).get_truecolor()]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: str, b: str) -> float:
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize(
    ("palette", "system"),
    [
        (ON_DARK, ColorSystem.EIGHT_BIT),
        (ON_LIGHT, ColorSystem.EIGHT_BIT),
        (FEW_ON_DARK, ColorSystem.STANDARD),
        (FEW_ON_LIGHT, ColorSystem.STANDARD),
    ],
)
def test_no_two_colours_fall_together(palette: Palette, system: ColorSystem) -> None:
    assert len({Color.parse(colour).downgrade(system).number for colour in palette}) == len(palette)


@pytest.mark.parametrize(("palette", "background"), [(ON_DARK, "#161B22"), (ON_LIGHT, "#FFFFFF")])
def test_every_colour_can_be_seen_on_its_background(palette: Palette, background: str) -> None:
    assert min(contrast(colour, background) for colour in palette) >= 3  # what WCAG 2 asks of graphics


def test_a_request_keeps_its_colour_and_its_neighbours_have_others() -> None:
    styles = [request_style(number, ON_DARK) for number in range(100)]
    assert all(a != b for a, b in itertools.pairwise(styles))
    assert request_style(7, ON_DARK) == styles[7]
    assert request_style(7, ON_DARK, True).reverse
