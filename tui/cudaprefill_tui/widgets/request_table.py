"""Running and waiting requests, and those that ended lately: a row a request."""

from __future__ import annotations

from typing import ClassVar, Literal

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.strip import Strip

from cudaprefill.client.engine_view import EngineView
from cudaprefill.protocol.telemetry import RequestRecord

from ..cells import fit
from ..colours import request_style
from ..glyphs import UNICODE, Glyphs
from ..messages import AbortWanted, ExplainWanted, RequestHovered, RequestSelected, StepWanted
from ..step_bar import share_cells
from .line_view import LineView
from .request_columns import NUMBER, PHASE, PHASES, PROGRESS, Column, lay_out, phase_glyph

Phase = Literal["all", "alive", "waiting", "prefilling", "decoding", "finished"]
PHASE_FILTERS: tuple[Phase, ...] = ("all", "alive", "waiting", "prefilling", "decoding", "finished")
DRAW_SECONDS = 0.2  # between two redraws of rows whose figures alone changed: faster ones cannot be read
SORT_SECONDS = 1.0  # rows that sort by a live figure change places no oftener


class RequestTable(LineView):
    """Posts RequestSelected, RequestHovered, AbortWanted, ExplainWanted, StepWanted, and Arranged when columns or order
    change.
    """

    class Arranged(Message):
        """Columns, sorting or filter are others now."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "request-table--waiting",
        "request-table--prefilling",
        "request-table--decoding",
        "request-table--finished",
        "request-table--hit",
        "request-table--rest",
        "request-table--cursor",
        "request-table--highlighted",
    }
    DEFAULT_CSS = """
    RequestTable > .request-table--waiting { color: $warning; }
    RequestTable > .request-table--prefilling { color: $accent; }
    RequestTable > .request-table--decoding { color: $success; }
    RequestTable > .request-table--finished { color: $foreground 45%; }
    RequestTable > .request-table--hit { color: $primary; }
    RequestTable > .request-table--rest { color: $foreground 20%; }
    RequestTable > .request-table--cursor { background: $primary 25%; text-style: bold; }
    RequestTable > .request-table--highlighted { background: $primary 12%; text-style: bold; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "move(-1)", "Request above", show=False),
        Binding("down", "move(1)", "Request below", show=False),
        Binding("pageup", "page(-1)", "Page up", show=False),
        Binding("pagedown", "page(1)", "Page down", show=False),
        Binding("home", "go(0)", "First request", show=False),
        Binding("end", "go(-1)", "Last request", show=False),
        Binding("enter", "select", "Select"),
        Binding("w", "explain", "Why so slow?"),
        Binding("l", "show_late", "Its slowest step"),
        Binding("x,delete", "abort", "Abort"),
        Binding("s", "sort_next", "Sort by the next column"),
        Binding("r", "reverse", "Reverse the order"),
        Binding("f", "next_phase", "Filter by phase"),
    ]

    def __init__(self, *, glyphs: Glyphs = UNICODE, id: str | None = None) -> None:
        super().__init__(glyphs=glyphs, id=id)
        self.message = "No requests: ask something, or start a load with F5."
        self.cursor: int | None = None  # a request's number, as the next two
        self.selected: int | None = None
        self.highlighted: int | None = None
        self.sort_column: Column | None = None  # None: the alive ones as they came, then the finished, newest first
        self.reversed = False
        self.phase: Phase = "all"
        self.text = ""
        self.columns: list[tuple[Column, int]] = []
        self._view: EngineView | None = None
        self._rows: list[RequestRecord] = []
        self._row_of: dict[int, int] = {}
        self._sorted_at = self._drawn_at = float("-inf")
        self._pending: set[int] = set()  # changed and not drawn yet
        self._hovered: int | None = None
        self._showed_owners = False
        self._shown_finished: set[int] = set()

    # --- What there is ---

    @property
    def num_lines(self) -> int:
        return len(self._rows)

    @property
    def numbers(self) -> list[int]:
        """Of the requests in the table, from its top."""
        return [record.number for record in self._rows]

    def update_requests(self, view: EngineView, changed: frozenset[int], *, reset: bool = False) -> None:
        """Redraws the rows of the requests that changed; arranges them anew where one came, went or changed phase."""
        another = view is not self._view
        self._view = view
        if self._knows_owners() != self._showed_owners:
            self._lay_out()
        if reset or another or self._must_arrange(changed):
            self._arrange()
            return
        self._pending |= changed
        if not 0 <= view.now() - self._drawn_at < DRAW_SECONDS:
            self._draw_pending()

    def _draw_pending(self) -> None:
        assert self._view is not None
        self._drawn_at = self._view.now()
        self.redraw_lines(self._row_of[number] for number in self._pending if number in self._row_of)
        self._pending.clear()

    def _must_arrange(self, changed: frozenset[int]) -> bool:
        assert self._view is not None
        for number in changed:
            record, row = self._view.requests.get(number), self._row_of.get(number)
            wanted = record is not None and self._wanted(record)
            if wanted != (row is not None) or (row is not None and self._rows[row] is not record):
                return True
            if record is not None and record.state == "finished" and number not in self._shown_finished:
                return True
        if self.sort_column is None or not changed:
            return False
        return self._view.now() - self._sorted_at >= SORT_SECONDS

    def _wanted(self, record: RequestRecord) -> bool:
        if self.phase == "alive" and record.state == "finished":
            return False
        if self.phase not in ("all", "alive") and record.state != self.phase:
            return False
        words = f"r{record.number} {record.id} {record.adapter or ''} {PHASES[record.state]} {record.state}".lower()
        return all(word in words for word in self.text.lower().split())

    def _arrange(self) -> None:
        view = self._view
        if view is None:
            return
        rows = [record for record in view.requests.values() if self._wanted(record)]
        if self.sort_column is None:
            alive = [record for record in rows if record.state != "finished"]
            finished = [record for record in rows if record.state == "finished"]
            finished.sort(key=lambda record: (record.finished or 0.0, record.number), reverse=True)
            rows = alive + finished
            if self.reversed:
                rows.reverse()
        else:
            key = self.sort_column.sort_key
            rows.sort(key=lambda record: (key(record, view), record.number), reverse=self.reversed)
        self._sorted_at = self._drawn_at = view.now()
        self._pending.clear()
        self._rows = rows
        self._row_of = {record.number: row for row, record in enumerate(rows)}
        self._shown_finished = {record.number for record in rows if record.state == "finished"}
        if view.requests:
            self.message = "No request matches the filter."
        else:
            self.message = "No requests: ask something, or start a load with F5."
        if self.cursor not in self._row_of:
            self.cursor = None
        self.resize_lines()
        self.redraw()

    def highlight(self, number: int | None) -> None:
        before, self.highlighted = self.highlighted, number
        if number != before:
            self.redraw_lines(self._row_of[n] for n in (before, number) if n is not None and n in self._row_of)

    # --- Order and choice ---

    def sort_by(self, column: Column | None, *, reverse: bool = False) -> None:
        self.sort_column, self.reversed = column, reverse
        self._arrange()
        self.post_message(self.Arranged())

    def filter(self, *, text: str | None = None, phase: Phase | None = None) -> None:
        """Shows requests whose number, id, adapter or phase has every word of `text`."""
        self.text = self.text if text is None else text
        self.phase = phase or self.phase
        self._arrange()
        self.post_message(self.Arranged())

    def action_sort_next(self) -> None:
        shown: list[Column | None] = [None, *(column for column, _ in self.columns)]
        place = shown.index(self.sort_column) if self.sort_column in shown else 0
        self.sort_by(shown[(place + 1) % len(shown)])

    def action_reverse(self) -> None:
        self.sort_by(self.sort_column, reverse=not self.reversed)

    def action_next_phase(self) -> None:
        self.filter(phase=PHASE_FILTERS[(PHASE_FILTERS.index(self.phase) + 1) % len(PHASE_FILTERS)])

    # --- Keys and pointer ---

    def current(self) -> RequestRecord | None:
        """The request under the cursor."""
        return self._rows[self._row_of[self.cursor]] if self.cursor in self._row_of else None

    def show_request(self, number: int) -> bool:
        """Puts the cursor on a request; False when it is not in the table."""
        if number not in self._row_of:
            return False
        self._put_cursor(self._row_of[number])
        return True

    def action_move(self, by: int) -> None:
        if self._rows:
            before_first = -1 if by > 0 else 1
            row = before_first if self.cursor is None else self._row_of[self.cursor]
            self._put_cursor(max(0, min(row + by, len(self._rows) - 1)))

    def action_page(self, direction: int) -> None:
        self.action_move(direction * max(self.size.height - 1, 1))

    def action_go(self, row: int) -> None:
        if self._rows:
            self._put_cursor(row % len(self._rows))

    def action_select(self) -> None:
        """The request under the cursor, or none when it was selected already."""
        if self.cursor is not None:
            self.selected = None if self.selected == self.cursor else self.cursor
            self.post_message(RequestSelected(self.selected))

    def action_explain(self) -> None:
        record = self.current()
        if record is not None:
            self.post_message(ExplainWanted(record.number, record.id))

    def action_show_late(self) -> None:
        """The step that made the request wait longest for a token."""
        step = self._view.slowest_step_of(self.cursor) if self._view is not None and self.cursor is not None else None
        if step is not None:
            self.post_message(StepWanted(step.record.number))

    def action_abort(self) -> None:
        record = self.current()
        if record is not None and record.state != "finished":
            self.post_message(AbortWanted(record.number, record.id))

    def _put_cursor(self, row: int) -> None:
        before, self.cursor = self.cursor, self._rows[row].number
        self.redraw_lines({row, *([self._row_of[before]] if before in self._row_of else [])})
        self.scroll_to_row(row)
        self._hover(self.cursor)

    def on_focus(self) -> None:
        if self.cursor is None:
            self.action_go(0)

    def on_click(self, event: events.Click) -> None:
        row = self._row_at(event)
        if row is not None:
            self._put_cursor(row)
            self.action_select()

    def on_mouse_move(self, event: events.MouseMove) -> None:
        row = self._row_at(event)
        self._hover(None if row is None else self._rows[row].number)

    def on_leave(self, event: events.Leave) -> None:
        self._hover(None)

    def on_blur(self) -> None:
        self._hover(None)

    def _row_at(self, event: events.MouseEvent) -> int | None:
        offset = event.get_content_offset(self)
        row = offset.y + self.scroll_offset.y if offset is not None else len(self._rows)
        return row if row < len(self._rows) else None

    def _hover(self, number: int | None) -> None:
        if number != self._hovered:
            self._hovered = number
            self.post_message(RequestHovered(number))

    # --- Lines ---

    def on_resize(self, event: events.Resize) -> None:
        self._lay_out()

    def _knows_owners(self) -> bool:
        return self._view is not None and bool(self._view.blocks.owners)

    def _lay_out(self) -> None:
        self._showed_owners = self._knows_owners()
        self.columns = lay_out(self.room, self._showed_owners)
        self.redraw()
        self.post_message(self.Arranged())

    def line(self, y: int) -> Strip:
        record, view = self._rows[y], self._view
        assert view is not None
        finished = record.state == "finished"
        base = self.part("request-table--finished") if finished else Style.null()
        segments = [Segment(self.glyphs.cursor if record.number == self.cursor else " ")]
        for column, width in self.columns:
            if column is PHASE:
                text = f" {phase_glyph(record, self.glyphs)} {PHASES[record.state]}"
                segments.append(Segment(fit(text, width), self.part(f"request-table--{record.state}")))
            elif column is PROGRESS:
                segments += self._progress(record, view, width)
            elif column is NUMBER:
                text = fit(f"r{record.number}", width - 1, "right")
                segments.append(Segment(f" {text}", request_style(record.number, self.palette)))
            elif column.text is not None:
                segments.append(Segment(f" {fit(column.text(record, view), width - 1, column.align)}", base))
        strip = Strip(segments).adjust_cell_length(self.room)
        if record.number == self.cursor and self.has_focus:
            return self.over(strip, "request-table--cursor")
        if record.number in (self.highlighted, self.selected):
            return self.over(strip, "request-table--highlighted")
        return strip

    def _progress(self, record: RequestRecord, view: EngineView, width: int) -> list[Segment]:
        """Hits, then chunk by chunk, of what the prefill has to compute."""
        glyphs, rest = self.glyphs, self.part("request-table--rest")
        target = max(view.prefill_tokens(record.number), 1)
        cells = width - 3
        hits = min(max(record.hit_tokens, 0), target)
        chunks = [max(length, 0) for _, length in view.chunks_of(record.number)]
        seen = max(max(record.computed_tokens, 0) - hits - sum(chunks), 0)
        amounts = [hits, *([seen] if seen else []), *chunks]
        shares = share_cells(amounts, max(target, sum(amounts)), cells)
        colour = self.part("request-table--finished")
        if record.state != "finished":
            colour = request_style(record.number, self.palette)
        segments = [
            Segment(f" {glyphs.left_edge}", rest),
            Segment(glyphs.hit * shares[0], self.part("request-table--hit")),
        ]
        for place, share in enumerate(shares[1:]):
            segments.append(Segment(glyphs.fills[2 * (place % 2)] * share, colour))
        segments.append(Segment(glyphs.unused * (cells - sum(shares)), rest))
        segments.append(Segment(glyphs.right_edge, rest))
        return segments
