"""Two widgets with a divider between them that can be moved."""

from __future__ import annotations

from typing import Literal

from textual.containers import Container
from textual.widget import Widget


class Split(Container):
    """`first` and `second` beside each other ("horizontal") or one above the other ("vertical"). Posts SplitMoved.

    fraction: the first child's share. min_first, min_second: cells; where both do not fit, the second gives way.
    """

    def __init__(
        self,
        first: Widget,
        second: Widget,
        *,
        direction: Literal["horizontal", "vertical"] = "horizontal",
        fraction: float = 0.5,
        min_first: int = 10,
        min_second: int = 10,
        id: str | None = None,
    ) -> None:
        super().__init__(first, second, id=id)
        self.direction = direction
        self.fraction = fraction
        self.min_first, self.min_second = min_first, min_second
