"""Two widgets with a divider between them that can be moved."""

from __future__ import annotations

from typing import ClassVar, Literal

from rich.segment import Segment
from textual import events
from textual.app import RenderResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.content import Content
from textual.geometry import Offset, Region, Size, Spacing
from textual.layout import ArrangeResult, Layout, WidgetPlacement
from textual.reactive import reactive
from textual.strip import Strip
from textual.widget import Widget

from ..messages import SplitMoved

Direction = Literal["horizontal", "vertical"]
HANDLE = 5  # cells of a vertical split's handle


class Split(Container):
    """`first` and `second` beside each other ("horizontal") or one above the other ("vertical"). Posts SplitMoved.

    A column between the two is the divider; one above the other, the divider is a handle in the right end of the
    second's top row and takes no place. A child that is not displayed leaves all to the other.

    fraction: the first child's share. min_first, min_second: cells; where both do not fit, the first has all.
    """

    direction: reactive[Direction] = reactive("horizontal")
    fraction = reactive(0.5)

    def __init__(
        self,
        first: Widget,
        second: Widget,
        *,
        direction: Direction = "horizontal",
        fraction: float = 0.5,
        min_first: int = 10,
        min_second: int = 10,
        id: str | None = None,
    ) -> None:
        self.first, self.second, self.divider = first, second, Divider()
        super().__init__(first, self.divider, second, id=id)
        self.min_first, self.min_second = min_first, min_second
        self.set_reactive(Split.direction, direction)
        self.divider.set_class(direction == "vertical", "-vertical")
        self.set_reactive(Split.fraction, fraction)
        self._started_with = fraction
        self._split_layout = _SplitLayout()

    @property
    def layout(self) -> Layout:
        return self._split_layout

    def validate_fraction(self, fraction: float) -> float:
        return min(max(fraction, 0.0), 1.0)

    def watch_direction(self, direction: Direction) -> None:
        self.divider.set_class(direction == "vertical", "-vertical")
        self._lay_out()

    def watch_fraction(self) -> None:
        self._lay_out()

    def _lay_out(self) -> None:
        """Only a child that wants another layout makes Textual forget where the children are."""
        self.divider.refresh(layout=True)

    @property
    def thickness(self) -> int:
        """Cells between the children."""
        return 1 if self.direction == "horizontal" else 0

    def cells(self, size: Size) -> tuple[int, int]:
        """What the children get of a size, along the direction."""
        if not self.first.display:
            return 0, self._along(size)
        total = self._along(size)
        if not self.second.display or total - self.thickness < self.min_first + self.min_second:
            return total, 0
        total -= self.thickness
        first = min(max(round(self.fraction * total), self.min_first), total - self.min_second)
        return first, total - first

    def move_to(self, first: int) -> None:
        """Gives the first child so many cells, as far as the least sizes allow."""
        total = self._along(self.size) - self.thickness
        if total >= self.min_first + self.min_second:
            self.fraction = min(max(first, self.min_first), total - self.min_second) / total

    def move_by(self, cells: int) -> None:
        self.move_to(self.cells(self.size)[0] + cells)

    def start_over(self) -> None:
        """Back to the fraction of the beginning."""
        self.fraction = self._started_with

    def tell(self) -> None:
        self.post_message(SplitMoved(self.id, self.fraction))

    def _along(self, size: Size) -> int:
        return size.width if self.direction == "horizontal" else size.height


class _SplitLayout(Layout):
    name = "split"

    def arrange(self, parent: Widget, children: list[Widget], size: Size, greedy: bool = True) -> ArrangeResult:
        assert isinstance(parent, Split)
        first, second = parent.cells(size)
        width, height = size
        if parent.direction == "horizontal":
            regions = [
                (parent.first, Region(0, 0, first, height)),
                (parent.divider, Region(first, 0, parent.thickness, height)),
                (parent.second, Region(width - second, 0, second, height)),
            ]
        else:
            regions = [
                (parent.first, Region(0, 0, width, first)),
                (parent.second, Region(0, first, width, second)),
                (parent.divider, Region(max(width - HANDLE - 2, 0), first, min(HANDLE, width), 1)),
            ]
        divided = first > 0 and second > 0
        return [
            WidgetPlacement(region, Offset(), Spacing(), widget, order=1 if widget is parent.divider else 0)
            for widget, region in regions
            if region.area and widget in children and (divided or widget is not parent.divider)
        ]


class Divider(Widget, can_focus=True):
    """Moved by the mouse, or by arrow keys while it has the focus."""

    ALLOW_SELECT = False
    DEFAULT_CSS = """
    Divider {
        background: $background;
        color: $border;
        pointer: ew-resize;
    }
    Divider.-vertical { background: $surface; color: $foreground 50%; pointer: ns-resize; }
    Divider:hover, Divider:focus, Divider.-dragged { background: $primary 40%; color: $foreground; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,up", "move(-1)", "Move the divider back", show=False),
        Binding("right,down", "move(1)", "Move the divider on", show=False),
        Binding("shift+left,shift+up", "move(-5)", "Move the divider back by five", show=False),
        Binding("shift+right,shift+down", "move(5)", "Move the divider on by five", show=False),
        Binding("home", "start_over", "Put the divider where it was at first"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self.tooltip = Content("Drag, or use the arrow keys; a double click puts it back")
        self._grabbed: int | None = None  # where in the first child's cells less the pointer's place

    @property
    def split(self) -> Split:
        parent = self.parent
        assert isinstance(parent, Split)
        return parent

    def render(self) -> RenderResult:
        return Content()

    def render_line(self, y: int) -> Strip:
        if self.split.direction == "vertical":
            text = "╶┄┄┄╴"[: self.size.width]
        else:
            middle = self.size.height // 2
            text = "┊" if abs(y - middle) <= 1 else " "
        return Strip([Segment(text, self.rich_style)])

    def action_move(self, by: int) -> None:
        self.split.move_by(by)
        self.split.tell()

    def action_start_over(self) -> None:
        self.split.start_over()
        self.split.tell()

    def on_mouse_down(self, event: events.MouseDown) -> None:
        self._grabbed = self.split.cells(self.split.size)[0] - self._place(event)
        self.capture_mouse()
        self.add_class("-dragged")
        event.stop()

    def on_mouse_move(self, event: events.MouseMove) -> None:
        if self._grabbed is not None:
            self.split.move_to(self._place(event) + self._grabbed)
            event.stop()

    def on_mouse_up(self, event: events.MouseUp) -> None:
        if self._grabbed is not None:
            self._grabbed = None
            self.release_mouse()
            self.remove_class("-dragged")
            self.split.tell()
            event.stop()

    def on_click(self, event: events.Click) -> None:
        if event.chain == 2:
            self.action_start_over()

    def _place(self, event: events.MouseEvent) -> int:
        return int(event.screen_x if self.split.direction == "horizontal" else event.screen_y)
