"""An answer as it streams: what is complete is drawn once, the rest with every new piece."""

from __future__ import annotations

from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Static

from ..markdown_text import Block, join_blocks, parse_blocks

# A page is closed when it has so many lines; then the cost of a token does not grow with what came before it.
PAGE_LINES = 48


class AnswerMarkdown(Vertical):
    """`await append(text)`; `source` is all of it."""

    DEFAULT_CSS = """
    AnswerMarkdown {
        height: auto;
        Static { height: auto; width: 1fr; margin-bottom: 1; }
        Static.-goes-on { margin-bottom: 0; }
    }
    """

    def __init__(self) -> None:
        super().__init__()
        self.source = ""
        self._tail = ""  # of the source: what the last page shows
        self._page: Static | None = None

    async def append(self, text: str) -> None:
        self.source += text
        self._tail += text
        if self._page is None:
            await self._turn_page()
        assert self._page is not None
        blocks = parse_blocks(self._tail)
        if self._tail.count("\n") > PAGE_LINES:
            blocks = await self._close_page(blocks)
        self._show(self._page, join_blocks(blocks))

    def _show(self, page: Static, content: Content) -> None:
        """The screen is laid out anew only when the page gets longer: most words end in the line they began in."""
        page.update(content, layout=False)
        page.clear_cached_dimensions()
        size = page.content_size
        if page.get_content_height(size, self.screen.size, size.width) != size.height:
            page.refresh(layout=True)

    async def _close_page(self, blocks: list[Block]) -> list[Block]:
        """All blocks but the last, or all whole lines of one long piece of code, stay; returns the rest."""
        assert self._page is not None
        last = blocks[-1]
        lines = self._tail.split("\n")
        if len(blocks) > 1:
            self._page.update(join_blocks(blocks[:-1]))
            self._tail = "\n".join(lines[last.line :])
        elif last.fence:
            *whole, unfinished = lines
            self._page.update(join_blocks(parse_blocks("\n".join(whole))))
            self._page.add_class("-goes-on")
            self._tail = f"{last.fence}\n{unfinished}"
        else:
            return blocks
        await self._turn_page()
        return parse_blocks(self._tail)

    async def _turn_page(self) -> None:
        self._page = Static(Content(""))
        await self.mount(self._page)
