"""How long a step may last while requests decode: milliseconds, or "auto", see docs/scheduling.md."""

from __future__ import annotations

from typing import Literal

ItlTarget = float | Literal["auto"]

# What "auto" begins with: it is longer where decodes alone take more than half of it.
AUTO_ITL_TARGET_MS = 150.0


def itl_target_number(target: ItlTarget | None) -> float | None:
    """Milliseconds; None where there is no target."""
    return AUTO_ITL_TARGET_MS if target == "auto" else target


def itl_target_text(target: ItlTarget | None) -> str:
    """For a person."""
    number = itl_target_number(target)
    if number is None:
        return "none"
    return f"auto: {number:g} ms" if target == "auto" else f"{number:g} ms"
