"""The block map with its totals above and its legend below."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widget import Widget

from cudaprefill.client.engine_view import EngineView, ViewWatch
from cudaprefill.protocol.telemetry import SHARED

from ..cells import percent
from ..glyphs import UNICODE, Glyphs
from ..messages import OwnersWanted
from .block_map import BlockMap
from .pane import Pane


class BlocksPane(Pane):
    """Posts what its BlockMap posts, and OwnersWanted when its colours need them or no longer do."""

    TITLE = "Blocks"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("o", "toggle_colour", "Colour by request", tooltip="Colour blocks by their request or by their state")
    ]
    DEFAULT_CSS = """
    BlocksPane.-low > _Legend { display: none; }
    """

    def __init__(self, *, glyphs: Glyphs = UNICODE, id: str | None = None) -> None:
        super().__init__(glyphs=glyphs, id=id)
        self.map = BlockMap(glyphs=glyphs)
        self._legend = _Legend(self.map)
        self._watch: ViewWatch | None = None
        self._view: EngineView | None = None

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

    def _show_totals(self, view: EngineView) -> None:
        pool = view.pool
        if pool is None or view.engine is None:
            return
        total = max(pool.free + pool.cached + pool.used, 1)
        shared = view.blocks.count(SHARED) / total
        self.show_title(
            f"{total}",
            f"used {percent(pool.used / total)}",
            f"shared {percent(shared)}",
            f"cached {percent(pool.cached / total)}",
            f"waste {_one_decimal(view.waste)}",
            f"hits {percent(view.hit_rate)}",
            f"evicted {pool.evicted}",
        )


class _Legend(Widget):
    """What the glyphs mean, in the colours of the theme."""

    DEFAULT_CSS = "_Legend { height: 1; padding: 0 1; background: $surface; color: $foreground 70%; }"

    def __init__(self, map: BlockMap) -> None:
        super().__init__()
        self._map = map

    def render(self) -> Content:
        glyphs, by_request = self._map.glyphs, self._map.by_request
        entries = (
            (glyphs.active, "active", "active"),
            (glyphs.shared, "shared", "shared"),
            (glyphs.cached, "cached", "cached"),
            (glyphs.evicted, "evicted", "just evicted"),
            (glyphs.free, "free", "free"),
        )
        parts: list[Content | str] = []
        for glyph, part, words in entries:
            style = self._map.get_visual_style(f"block-map--{part}")
            if by_request and part in ("active", "shared"):
                style = self.visual_style
            parts += [Content.styled(glyph, style), f" {words}   "]
        parts.append("colour says whose (o)" if by_request else "o colours by request")
        return Content.assemble(*parts)


def _one_decimal(share: float | None) -> str:
    return "    -" if share is None else f"{share:5.1%}"
