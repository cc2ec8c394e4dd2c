"""One row a step, newest at the end: how its token budget was spent, how long it took, and who waited for what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.segment import Segment
from textual import events
from textual.binding import Binding, BindingType
from textual.cache import LRUCache
from textual.strip import Strip

from cudaprefill.client.engine_view import EngineView, StepView
from cudaprefill.protocol.itl_target import itl_target_number

from ..cells import fit, one_line
from ..colours import request_style
from ..figures import milliseconds
from ..glyphs import UNICODE, Glyphs
from ..messages import RequestHovered, StepSelected
from ..step_bar import bar_parts, fill_places
from .line_view import LineView

NUMBER, TOKENS, DURATION, WAITING = 7, 6, 9, 9  # cells, a space before included
LEAST_REASON, MOST_REASON = 18, 36
LEAST_BAR = 12


class StepList(LineView):
    """Follows the end while it is there. Posts StepSelected, and RequestHovered for the chunk under the pointer."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "step-list--number",
        "step-list--decode",
        "step-list--unused",
        "step-list--figures",
        "step-list--late",
        "step-list--waiting",
        "step-list--cursor",
    }
    DEFAULT_CSS = """
    StepList > .step-list--number { color: $foreground 45%; }
    StepList > .step-list--decode { color: $foreground; text-style: bold; }
    StepList > .step-list--unused { color: $foreground 20%; }
    StepList > .step-list--figures { color: $foreground 80%; }
    StepList > .step-list--late { color: $error; text-style: bold; }
    StepList > .step-list--waiting { color: $warning; }
    StepList > .step-list--cursor { background: $primary 25%; text-style: bold; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", "Step before", show=False),
        Binding("down", "move(1)", "Step after", show=False),
        Binding("pageup", "page(-1)", "Page up", show=False),
        Binding("pagedown", "page(1)", "Page down", show=False),
        Binding("home", "oldest", "Oldest step", show=False),
        Binding("end", "follow", "Follow", tooltip="Go to the newest step and stay with it"),
        Binding("space", "pause", "Pause"),
        Binding("enter", "choose", "Explain", tooltip="What the step computed, and who waited for it"),
    ]

    def __init__(self, *, glyphs: Glyphs = UNICODE, id: str | None = None) -> None:
        super().__init__(glyphs=glyphs, id=id)
        self.message = "No steps yet: ask something, or start a load with F5."
        self.paused = False
        self.cursor: int | None = None  # number of a step; none while the end is followed
        self.highlighted: int | None = None
        self.itl_target: float | None = None  # seconds
        self._steps: Sequence[StepView] = ()
        self._view: EngineView | None = None
        self._strips: LRUCache[tuple[object, ...], Strip] = LRUCache(512)
        self._hovered: int | None = None
        self._at_end = True  # since it was last scrolled: another size moves the end, not the wish to follow it

    # --- What there is ---

    @property
    def num_lines(self) -> int:
        return len(self._steps)

    @property
    def following(self) -> bool:
        """The newest step is in sight and stays there."""
        return not self.paused and self.cursor is None and self._at_end

    def update_steps(self, view: EngineView, new: int) -> None:
        """`new` steps came; 0 with another view."""
        following = self.following
        target = itl_target_number(view.settings.itl_target_ms) if view.settings is not None else None
        self.itl_target = target / 1e3 if target else None
        if view is not self._view or (not self.paused and len(view.steps) < new):
            self._view, self._steps, self.cursor, following = view, view.steps, None, not self.paused
        if self.paused:
            return
        before = self.virtual_size.height
        lost = max(0, before + new - len(view.steps))  # that left the history at its old end
        self.resize_lines()
        if following or lost:
            top = self.scroll_offset.y
            self.scroll_to_line(self.max_scroll_y if following else max(0, top - lost))
            if self.scroll_offset.y == top:  # else it was redrawn when it scrolled
                self.redraw()
        else:
            self.redraw_lines(range(before, len(view.steps)))

    def reset(self, view: EngineView) -> None:
        """The history may be another one."""
        self._view, self._steps, self.paused = view, view.steps, False
        self._strips.clear()
        if self.cursor is not None and view.step_view(self.cursor) is None:
            self.cursor = None
        self.resize_lines()
        if self.cursor is None:
            self.scroll_to_line(self.max_scroll_y)
        self.redraw()

    def highlight(self, number: int | None) -> None:
        if number != self.highlighted:
            self.highlighted = number
            self.redraw()

    # --- Moving ---

    def jump_to(self, number: int) -> bool:
        """Puts the cursor on a step; False when the history does not have it."""
        row = self._row_of(number)
        if row is None:
            return False
        self._put_cursor(row)
        return True

    def action_move(self, by: int) -> None:
        if not self._steps:
            return
        row = self._row_of(self.cursor) if self.cursor is not None else None
        if row is None:
            row = min(self.scroll_offset.y + self.size.height, len(self._steps)) - (1 if by > 0 else 0)
        if row + by >= len(self._steps):
            self.action_follow()
        else:
            self._put_cursor(max(0, row + by))

    def action_page(self, direction: int) -> None:
        self.action_move(direction * max(self.size.height - 1, 1))

    def action_oldest(self) -> None:
        if self._steps:
            self._put_cursor(0)

    def action_follow(self) -> None:
        """Goes to the newest step and stays with it."""
        self.cursor = None
        self._hover(None)
        if self.paused:
            self.action_pause()
        self.scroll_to_line(self.max_scroll_y)
        self.redraw()

    def action_pause(self) -> None:
        """Stops the rows; steps go on being recorded."""
        if self._view is None:
            return
        self.paused = not self.paused
        if self.paused:
            self._steps = tuple(self._view.steps)
        else:
            self._steps = self._view.steps
            self.resize_lines()
            if self.cursor is None:
                self.scroll_to_line(self.max_scroll_y)
        self.redraw()

    def action_choose(self) -> None:
        if self.cursor is None and self._steps:
            self._put_cursor(len(self._steps) - 1)
        if self.cursor is not None:
            self.post_message(StepSelected(self.cursor))

    def _put_cursor(self, row: int) -> None:
        self.cursor = self._steps[row].record.number
        self.scroll_to_row(row)
        self.redraw()

    def _row_of(self, number: int) -> int | None:
        low, high = 0, len(self._steps)
        while low < high:
            middle = (low + high) // 2
            if self._steps[middle].record.number < number:
                low = middle + 1
            else:
                high = middle
        found = low < len(self._steps) and self._steps[low].record.number == number
        return low if found else None

    def on_resize(self, event: events.Resize) -> None:
        if self.following:
            self.call_after_refresh(self._stay_at_end)

    def _stay_at_end(self) -> None:
        """Where the end is, is known only after the lines were laid out."""
        if self.cursor is None and not self.paused:
            self.scroll_to_line(self.max_scroll_y)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        self._at_end = round(new_value) >= self.max_scroll_y

    # --- Pointer ---

    def on_click(self, event: events.Click) -> None:
        row = self._row_at(event)
        if row is not None:
            self._put_cursor(row)
            self.action_choose()

    def on_mouse_move(self, event: events.MouseMove) -> None:
        row = self._row_at(event)
        self._hover(None if row is None else self._request_at(self._steps[row], event.get_content_offset(self).x))  # type: ignore[union-attr]

    def on_leave(self, event: events.Leave) -> None:
        self._hover(None)

    def _row_at(self, event: events.MouseEvent) -> int | None:
        offset = event.get_content_offset(self)
        if offset is None:
            return None
        row = offset.y + self.scroll_offset.y
        return row if row < len(self._steps) else None

    def _request_at(self, step: StepView, x: int) -> int | None:
        end = NUMBER + 2
        for part in bar_parts(step, self._widths()[0]):
            if end <= x < end + part.cells:
                return part.number if part.kind == "chunk" else None
            end += part.cells
        return None

    def _hover(self, number: int | None) -> None:
        if number != self._hovered:
            self._hovered = number
            self.post_message(RequestHovered(number))

    # --- Lines ---

    def _widths(self) -> tuple[int, int, int, int]:
        """Cells of the bar, the duration, the waiting count and its reason; columns go where the bar gets too short."""
        left = self.room - NUMBER - 3 - TOKENS - 1
        duration = DURATION if left - DURATION >= LEAST_BAR else 0
        left -= duration
        waiting = WAITING if left - WAITING >= 2 * LEAST_BAR else 0
        left -= waiting
        reason = min(left - 3 * LEAST_BAR, MOST_REASON)
        if reason < LEAST_REASON:
            reason = 0
        return max(left - reason, 1), duration, waiting, reason

    def line(self, y: int) -> Strip:
        step = self._steps[y]
        selected = step.record.number == self.cursor
        lit = self.highlighted if self._concerns(step, self.highlighted) else None
        key = (step.record.number, self.room, selected, lit, self.app.theme, self.itl_target)
        strip = self._strips.get(key)
        if strip is None:
            strip = self._strips[key] = self._draw(step, selected, lit)
        return strip

    def _concerns(self, step: StepView, number: int | None) -> bool:
        return number is not None and (
            number in step.decodes or any(chunk[0] == number for chunk in step.record.chunks)
        )

    def _draw(self, step: StepView, selected: bool, lit: int | None) -> Strip:
        bar, duration, waiting, reason = self._widths()
        record = step.record
        figures = self.part("step-list--figures")
        segments = [
            Segment(self.glyphs.cursor if selected else " "),
            Segment(fit(str(record.number), NUMBER - 1, "right"), self.part("step-list--number")),
            Segment(f" {self.glyphs.left_edge}", self.part("step-list--unused")),
            *self._bar(step, bar, lit),
            Segment(self.glyphs.right_edge, self.part("step-list--unused")),
            Segment(fit(str(step.num_tokens), TOKENS, "right"), figures),
        ]
        if duration:
            late = self.itl_target is not None and record.duration > self.itl_target and bool(step.decodes)
            text = fit(milliseconds(max(record.duration, 0.0)), duration, "right")
            segments.append(Segment(text + ("!" if late else " "), self.part("step-list--late") if late else figures))
        if waiting:
            text = f"wait {record.num_waiting}" if record.num_waiting else ""
            segments.append(Segment(f" {fit(text, waiting - 1)}", self.part("step-list--waiting")))
        if reason:
            segments.append(Segment(f" {fit(_why(step), reason - 1)}", self.part("step-list--number")))
        strip = Strip(segments).adjust_cell_length(self.room)
        return self.over(strip, "step-list--cursor") if selected else strip

    def _bar(self, step: StepView, width: int, lit: int | None) -> list[Segment]:
        parts = bar_parts(step, width)
        fills = fill_places([part.number for part in parts if part.kind == "chunk"], len(self.glyphs.fills))
        places = iter(fills)
        segments = []
        for part in parts:
            if part.kind == "decode":
                style = self.part("step-list--decode")
                if lit is not None and lit in step.decodes:
                    style = request_style(lit, self.palette, True)
                segments.append(Segment(self.glyphs.decode * part.cells, style))
            elif part.kind == "chunk":
                fill = self.glyphs.fills[next(places)]
                segments.append(
                    Segment(fill * part.cells, request_style(part.number, self.palette, part.number == lit))
                )
            else:
                segments.append(Segment(self.glyphs.unused * part.cells, self.part("step-list--unused")))
        return segments


def _why(step: StepView) -> str:
    if step.record.preempted:
        return f"preempted {len(step.record.preempted)}"
    return one_line(step.record.waiting_for)
