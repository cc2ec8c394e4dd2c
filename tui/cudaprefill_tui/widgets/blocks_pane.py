"""The block map with its totals above and its legend below."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.style import Style

from cudaprefill.client.engine_view import EngineView, ViewWatch
from cudaprefill.protocol.telemetry import SHARED

from ..cells import percent
from ..glyphs import UNICODE, Glyphs
from ..messages import OwnersWanted
from .block_map import BlockMap
from .pane import Legend, Pane

TOTALS_SECONDS = 0.5  # between two changes of the totals: faster ones cannot be read


class BlocksPane(Pane):
    """Posts what its BlockMap posts, and OwnersWanted when its colours need them or no longer do."""

    TITLE = "Blocks"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("o", "toggle_colour", "Colour by request", tooltip="Colour blocks by their request or by their state")
    ]
    DEFAULT_CSS = """
    BlocksPane.-low > Legend { display: none; }
    """

    def __init__(self, *, glyphs: Glyphs = UNICODE, id: str | None = None) -> None:
        super().__init__(glyphs=glyphs, id=id)
        self.map = BlockMap(glyphs=glyphs)
        self._legend = Legend(self._entries)
        self._watch: ViewWatch | None = None
        self._view: EngineView | None = None
        self._totals_at = float("-inf")
        self._has_virtual = False

    @property
    def by_request(self) -> bool:
        return self.map.by_request

    def compose(self) -> ComposeResult:
        yield self.map
        yield self._legend

    def on_resize(self) -> None:
        self.set_class(self.size.height < 3, "-low")
        if self._view is not None:
            self._show_totals(self._view)

    def update_view(self, view: EngineView) -> None:
        if self._watch is None or view is not self._view:
            self._watch, self._view = view.watch(), view
        changes = self._watch.take()
        if changes.blocks is None or changes.blocks:
            self.map.update_blocks(view, changes.blocks)
            has_virtual = view.blocks.count_virtual() > 0
            if has_virtual != self._has_virtual:
                self._has_virtual = has_virtual
                self._legend.refresh()
        if changes.reset or not 0 <= view.now() - self._totals_at < TOTALS_SECONDS:
            self._show_totals(view)

    def highlight(self, number: int | None) -> None:
        self.map.highlight(number)

    def show_block(self, block: int) -> None:
        """Puts the cursor on a block and scrolls to it."""
        self.map.show_block(block)

    def colour_by_request(self, wanted: bool) -> None:
        if wanted != self.by_request:
            self.map.colour_by_request(wanted)
            self._legend.refresh()
            self.post_message(OwnersWanted(wanted))

    def action_toggle_colour(self) -> None:
        self.colour_by_request(not self.by_request)

    def _entries(self) -> list[tuple[str, str | Style, str]]:
        glyphs, by_request = self.glyphs, self.by_request
        entries: list[tuple[str, str | Style, str]] = []
        for glyph, part, words in (
            (glyphs.active, "active", "active"),
            (glyphs.shared, "shared", "shared"),
            (glyphs.cached, "cached", "cached"),
            (glyphs.evicted, "evicted", "just evicted"),
            (glyphs.free, "free", "free"),
        ):
            whose = by_request and part in ("active", "shared")
            entries.append((glyph, "" if whose else self.map.get_visual_style(f"block-map--{part}"), words))
        if self._has_virtual:
            entries.append((glyphs.virtual, "bold", "of an adapter"))
        return [*entries, ("o", "bold", "colours by state" if by_request else "colours by request")]

    def _show_totals(self, view: EngineView) -> None:
        pool = view.pool
        if pool is None or view.engine is None:
            return
        self._totals_at = view.now()
        total = max(pool.free + pool.cached + pool.used, 1)
        shared = view.blocks.count(SHARED) / total if len(view.blocks) else None
        self.show_title(
            f"{total}",
            f"used {percent(pool.used / total)}",
            f"shared {percent(shared)}",
            f"waste {_one_decimal(view.waste)}",
            f"hits {percent(view.hit_rate)}",
            f"cached {percent(pool.cached / total)}",
            f"evicted {pool.evicted}",
        )


def _one_decimal(share: float | None) -> str:
    return "    -" if share is None else f"{share:5.1%}"
