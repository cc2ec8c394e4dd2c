"""Dark, light and high contrast. Whose something is shows in Okabe and Ito's colours, which eight in a hundred men tell
apart too; what it is shows by glyphs, so that no theme and no `NO_COLOR` loses a meaning.
"""

from __future__ import annotations

from textual.theme import Theme

ORANGE, SKY, GREEN, YELLOW = "#E69F00", "#56B4E9", "#009E73", "#F0E442"
BLUE, VERMILLION, PURPLE = "#0072B2", "#D55E00", "#CC79A7"

# The greys have so little of a colour that terminals with 256 of them take a grey, not the nearest blue.
DARK = Theme(
    name="cudaprefill-dark",
    primary=SKY,
    secondary=BLUE,
    accent=ORANGE,
    success=GREEN,
    warning=YELLOW,
    error=VERMILLION,
    foreground="#D8DEE6",
    background="#121417",
    surface="#181B1F",
    panel="#23272D",
    dark=True,
    variables={
        "scrollbar": "#444B55",
        "scrollbar-hover": "#5A6370",
        "scrollbar-active": "#5A6370",
        "scrollbar-background": "#181B1F",
        "scrollbar-background-hover": "#181B1F",
        "scrollbar-background-active": "#181B1F",
        "scrollbar-corner-color": "#181B1F",
        "border": "#444B55",
        "border-blurred": "#30353C",
        "footer-background": "#23272D",
        "footer-key-foreground": ORANGE,
        "input-selection-background": "#56B4E9 35%",
        "block-cursor-background": SKY,
        "block-cursor-foreground": "#121417",
    },
)

LIGHT = Theme(
    name="cudaprefill-light",
    primary=BLUE,
    secondary="#3A7CA5",
    accent="#B35900",
    success="#007A59",
    warning="#8A6D00",
    error="#B23A00",
    foreground="#1B232C",
    background="#F4F5F7",
    surface="#FFFFFF",
    panel="#E6E9EE",
    dark=False,
    variables={
        "scrollbar": "#AAB4C0",
        "scrollbar-hover": "#8D99A8",
        "scrollbar-active": "#8D99A8",
        "scrollbar-background": "#FFFFFF",
        "scrollbar-background-hover": "#FFFFFF",
        "scrollbar-background-active": "#FFFFFF",
        "scrollbar-corner-color": "#FFFFFF",
        "border": "#AAB4C0",
        "border-blurred": "#CBD2DA",
        "footer-background": "#E6E9EE",
        "footer-key-foreground": "#B35900",
        "input-selection-background": "#0072B2 25%",
        "block-cursor-background": BLUE,
        "block-cursor-foreground": "#FFFFFF",
    },
)

HIGH_CONTRAST = Theme(
    name="cudaprefill-contrast",
    primary="#FFFFFF",
    secondary=SKY,
    accent=YELLOW,
    success="#35E0A8",
    warning=YELLOW,
    error="#FF8A4C",
    foreground="#FFFFFF",
    background="#000000",
    surface="#000000",
    panel="#000000",
    dark=True,
    text_alpha=1.0,
    variables={
        "scrollbar": "#FFFFFF",
        "scrollbar-hover": "#FFFFFF",
        "scrollbar-active": "#FFFFFF",
        "scrollbar-background": "#000000",
        "scrollbar-background-hover": "#000000",
        "scrollbar-background-active": "#000000",
        "scrollbar-corner-color": "#000000",
        "border": "#FFFFFF",
        "border-blurred": "#9A9A9A",
        "footer-background": "#000000",
        "footer-key-foreground": YELLOW,
        "input-selection-background": "#FFFFFF 45%",
        "block-cursor-background": YELLOW,
        "block-cursor-foreground": "#000000",
        "text-muted": "#DDDDDD",
    },
)

THEMES = (DARK, LIGHT, HIGH_CONTRAST)
TITLES = {DARK.name: "Dark", LIGHT.name: "Light", HIGH_CONTRAST.name: "High contrast"}


def next_theme(name: str) -> str:
    """The one after `name`, round and round; the first after one that is not ours."""
    names = [theme.name for theme in THEMES]
    return names[(names.index(name) + 1) % len(names)] if name in names else names[0]
