"""The block pool, a glyph a block: the glyph says what the block is, its colour whose."""

from __future__ import annotations

from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.strip import Strip

from cudaprefill.client.engine_view import EngineView
from cudaprefill.protocol.telemetry import ACTIVE, CACHED, FREE, SHARED, of_virtual_tokens

from ..colours import request_style
from ..glyphs import UNICODE, Glyphs
from ..messages import BlockClicked, RequestHovered
from .line_view import LineView

_EVICTED = 0  # beside the letters of the states
PARTS = {
    ord(ACTIVE): "block-map--active",
    ord(SHARED): "block-map--shared",
    ord(CACHED): "block-map--cached",
    ord(FREE): "block-map--free",
    _EVICTED: "block-map--evicted",
}
PARTS |= {ord(of_virtual_tokens(state)): PARTS[ord(state)] for state in (ACTIVE, SHARED, CACHED)}

WAITING = "Waiting for the engine's blocks…"
NOT_KNOWN = "A trace tells how many blocks are used, not which."


class BlockMap(LineView):
    """Posts BlockClicked, and RequestHovered for the owner of what the pointer or the cursor is over."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {*PARTS.values(), "block-map--address", "block-map--cursor"}
    DEFAULT_CSS = """
    BlockMap > .block-map--active { color: $success; }
    BlockMap > .block-map--shared { color: $primary; }
    BlockMap > .block-map--cached { color: $foreground 60%; }
    BlockMap > .block-map--evicted { color: $error; text-style: bold; }
    BlockMap > .block-map--free { color: $foreground 30%; }
    BlockMap > .block-map--address { color: $foreground 45%; }
    BlockMap > .block-map--cursor { color: $block-cursor-foreground; background: $block-cursor-background; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "move(-1, 0)", "Block before", show=False),
        Binding("right", "move(1, 0)", "Block after", show=False),
        Binding("up", "move(0, -1)", "Row above", show=False),
        Binding("down", "move(0, 1)", "Row below", show=False),
        Binding("pageup", "page(-1)", "Page up", show=False),
        Binding("pagedown", "page(1)", "Page down", show=False),
        Binding("home", "go(0)", "First block", show=False),
        Binding("end", "go(-1)", "Last block", show=False),
        Binding("enter", "describe", "Describe the block"),
    ]

    def __init__(self, *, glyphs: Glyphs = UNICODE, id: str | None = None) -> None:
        super().__init__(glyphs=glyphs, id=id)
        self.message = WAITING
        self.by_request = False
        self.cursor = 0
        self.highlighted: int | None = None
        self.columns = 64
        self._gutter = 0
        self._view: EngineView | None = None
        self._lit: frozenset[int] = frozenset()  # blocks of the highlighted request
        self._hovered: int | None = None
        self._letters = {
            ord(ACTIVE): glyphs.active,
            ord(SHARED): glyphs.shared,
            ord(CACHED): glyphs.cached,
            ord(FREE): glyphs.free,
            _EVICTED: glyphs.evicted,
            **{ord(of_virtual_tokens(state)): glyphs.virtual for state in (ACTIVE, SHARED, CACHED)},
        }

    # --- What there is ---

    @property
    def num_blocks(self) -> int:
        return 0 if self._view is None else len(self._view.blocks)

    @property
    def num_lines(self) -> int:
        return -(-self.num_blocks // self.columns)

    def update_blocks(self, view: EngineView, blocks: frozenset[int] | None) -> None:
        """Redraws the rows of the blocks that changed, None for all."""
        self._view = view
        self.message = WAITING if view.engine is None else NOT_KNOWN
        if blocks is None:
            self.cursor = max(0, min(self.cursor, self.num_blocks - 1))
            self._lit = self._blocks_of(self.highlighted)
            self._lay_out()
            return
        if self.highlighted is not None and blocks:
            self._lit = self._blocks_of(self.highlighted)
        self.redraw_lines({block // self.columns for block in blocks})

    def highlight(self, number: int | None) -> None:
        if number == self.highlighted:
            return
        before, self.highlighted = self._lit, number
        self._lit = self._blocks_of(number)
        self.redraw_lines({block // self.columns for block in before ^ self._lit})

    def colour_by_request(self, wanted: bool) -> None:
        self.by_request = wanted
        self.redraw()

    def _blocks_of(self, number: int | None) -> frozenset[int]:
        if number is None or self._view is None:
            return frozenset()
        return frozenset(self._view.blocks.owners.get(number, ()))

    # --- Lines ---

    def on_resize(self, event: events.Resize) -> None:
        self._lay_out()

    def _lay_out(self) -> None:
        """Rows start at round numbers where the width allows, with the first block's number before them."""
        width = self.room
        digits = len(str(max(self.num_blocks - 1, 0)))
        self._gutter = digits + 2 if width >= 32 + digits + 2 else 0
        room = max(width - self._gutter, 1)
        self.columns = (room // 16 * 16 if room >= 64 else room // 8 * 8) or room
        self.resize_lines()
        self.redraw()

    def line(self, y: int) -> Strip:
        if self._view is None:
            return Strip.blank(self.size.width)
        blocks = self._view.blocks
        first = y * self.columns
        row = blocks.states[first : first + self.columns]
        segments = []
        if self._gutter:
            segments.append(Segment(f" {first:>{self._gutter - 2}} ", self.part("block-map--address")))
        if blocks.evicted:
            for place in range(len(row)):
                if first + place in blocks.evicted:
                    row[place] = _EVICTED
        styles = {state: self.part(name) for state, name in PARTS.items()}
        cursor = self.cursor if self.has_focus else -1
        plain = not self.by_request and not self._lit
        run, run_style = "", Style.null()
        for place, state in enumerate(row):
            block = first + place
            style = styles[state]
            if block == cursor:
                style = self.part("block-map--cursor")
            elif not plain and state != _EVICTED:
                style = self._style_of(block, style)
            if style is not run_style:
                if run:
                    segments.append(Segment(run, run_style))
                run, run_style = "", style
            run += self._letters[state]
        segments.append(Segment(run, run_style))
        return Strip(segments)

    def _style_of(self, block: int, by_state: Style) -> Style:
        lit = block in self._lit
        if lit and self.highlighted is not None:
            return request_style(self.highlighted, self.palette, True)
        owners = self._view.blocks.owners_of(block) if self.by_request and self._view is not None else ()
        return request_style(owners[0], self.palette) if owners else by_state

    # --- Keys and pointer ---

    def action_move(self, across: int, down: int) -> None:
        self._go(self.cursor + across + down * self.columns)

    def action_page(self, direction: int) -> None:
        self._go(self.cursor + direction * self.columns * max(self.size.height - 1, 1))

    def action_go(self, block: int) -> None:
        self._go(block if block >= 0 else self.num_blocks - 1)

    def action_describe(self) -> None:
        if self.num_blocks:
            self.post_message(BlockClicked(self.cursor))

    def show_block(self, block: int) -> None:
        """Puts the cursor there."""
        self._go(block)

    def _go(self, block: int) -> None:
        if not 0 <= block < self.num_blocks:
            return
        before, self.cursor = self.cursor, block
        self.redraw_lines({before // self.columns, block // self.columns})
        self.scroll_to_row(block // self.columns)
        self._hover(block)

    def on_click(self, event: events.Click) -> None:
        block = self._block_at(event)
        if block is not None:
            self._go(block)
            self.action_describe()

    def on_mouse_move(self, event: events.MouseMove) -> None:
        self._hover(self._block_at(event))

    def on_leave(self, event: events.Leave) -> None:
        self._hover(None)

    def on_focus(self) -> None:
        self.redraw_lines({self.cursor // self.columns})

    def on_blur(self) -> None:
        self.redraw_lines({self.cursor // self.columns})
        self._hover(None)

    def _block_at(self, event: events.MouseEvent) -> int | None:
        offset = event.get_content_offset(self)
        if offset is None:
            return None
        column = offset.x - self._gutter
        block = (offset.y + self.scroll_offset.y) * self.columns + column
        return block if 0 <= column < self.columns and block < self.num_blocks else None

    def _hover(self, block: int | None) -> None:
        owners = self._view.blocks.owners_of(block) if block is not None and self._view is not None else ()
        number = owners[0] if owners else None
        if number != self._hovered:
            self._hovered = number
            self.post_message(RequestHovered(number))
