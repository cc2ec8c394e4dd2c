"""The request table with its column titles and its filter."""

from __future__ import annotations

from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Input

from cudaprefill.client.engine_view import EngineView, ViewWatch
from cudaprefill.protocol.telemetry import RequestRecord

from ..cells import fit, one_line
from ..glyphs import UNICODE, Glyphs
from .pane import Pane
from .request_columns import PHASES
from .request_table import RequestTable


class RequestsPane(Pane):
    """Posts what its RequestTable posts."""

    TITLE = "Requests"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("slash", "filter", "Filter by text", key_display="/")]
    DEFAULT_CSS = """
    RequestsPane > Input { display: none; height: 1; border: none; padding: 0 1; background: $panel; }
    RequestsPane.-filtering > Input { display: block; }
    """

    def __init__(self, *, glyphs: Glyphs = UNICODE, id: str | None = None) -> None:
        super().__init__(glyphs=glyphs, id=id)
        self.table = RequestTable(glyphs=glyphs)
        self._titles = _Titles(self.table)
        self._watch: ViewWatch | None = None
        self._view: EngineView | None = None

    def compose(self) -> ComposeResult:
        yield self._titles
        yield self.table
        yield _FilterInput(placeholder="part of an id, r17, prefill …", compact=True)

    @property
    def current(self) -> RequestRecord | None:
        """The request under the cursor."""
        return self.table.current()

    def update_view(self, view: EngineView) -> None:
        if self._watch is None or view is not self._view:
            self._watch, self._view = view.watch(), view
        changes = self._watch.take()
        if changes.reset or changes.requests:
            self.table.update_requests(view, changes.requests, reset=changes.reset)
        self._show_facts()

    def highlight(self, number: int | None) -> None:
        self.table.highlight(number)

    def show_request(self, number: int) -> bool:
        """Puts the cursor on a request; False when the table does not show it."""
        return self.table.show_request(number)

    def action_filter(self) -> None:
        self.add_class("-filtering")
        self.query_one(Input).focus()

    def on_resize(self) -> None:
        self._show_facts()

    def on_request_table_arranged(self) -> None:
        self._titles.refresh()
        self._show_facts()

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        self.table.filter(text=event.value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.set_class(bool(event.value), "-filtering")
        self.table.focus()

    def on__filter_input_left(self) -> None:
        self.query_one(Input).value = ""
        self.remove_class("-filtering")
        self.table.focus()

    def _show_facts(self) -> None:
        view = self._view
        if view is None:
            return
        facts = [f"{view.num_running:>2} running", f"{view.num_waiting:>2} waiting"]
        if self.table.phase != "all":
            facts.insert(0, f"only {PHASES.get(self.table.phase, self.table.phase)}")
        if self.table.text:
            facts.insert(0, f"with “{one_line(self.table.text)}”")
        self.show_title(*facts)


class _FilterInput(Input):
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", "End the filter", show=False)]

    class Left(Message):
        """The filter is no longer wanted."""

    def action_leave(self) -> None:
        self.post_message(self.Left())


class _Titles(Widget):
    """Column titles; a click sorts by the column, another click the other way round."""

    DEFAULT_CSS = "_Titles { height: 1; background: $surface; color: $foreground 55%; }"

    def __init__(self, table: RequestTable) -> None:
        super().__init__()
        self._table = table

    def render_line(self, y: int) -> Strip:
        table, base = self._table, self.rich_style
        segments = [Segment(" ", base)]
        for column, width in table.columns:
            name = column.name
            sorts = column is table.sort_column
            if sorts:
                name += table.glyphs.up if table.reversed else table.glyphs.down
            text = f" {fit(name, width - 1, column.align)}" if width else ""
            segments.append(Segment(text, base + Style(bold=True) if sorts else base))
        return Strip(segments).adjust_cell_length(self.size.width, base)

    def on_click(self, event: events.Click) -> None:
        end = 1
        for column, width in self._table.columns:
            if end <= event.x < end + width:
                again = column is self._table.sort_column
                self._table.sort_by(column, reverse=again and not self._table.reversed)
            end += width
