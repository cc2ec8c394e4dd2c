"""An application of single widgets that keeps the messages they post, and a clock that stands still."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from textual.app import App, ComposeResult
from textual.message import Message
from textual.pilot import Pilot
from textual.widget import Widget

from cudaprefill.client.engine_view import EngineView
from cudaprefill_tui import messages
from cudaprefill_tui.themes import DARK, THEMES
from tests.tui.synthetic import SyntheticEngine

Scene = Callable[["PaneApp", Pilot[None]], Awaitable[None]]
POSTED = tuple(
    kind for kind in vars(messages).values() if isinstance(kind, type) and kind.__module__ == messages.__name__
)


class Clock:
    """Seconds that pass only when told."""

    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        return self.time


class PaneApp(App[None]):
    AUTO_FOCUS = None

    def __init__(self, widgets: Sequence[Widget], theme: str = DARK.name) -> None:
        super().__init__()
        self.posted: list[Message] = []
        self._widgets = widgets
        self._wanted_theme = theme

    def compose(self) -> ComposeResult:
        yield from self._widgets

    def on_mount(self) -> None:
        for theme in THEMES:
            self.register_theme(theme)
        self.theme = self._wanted_theme

    async def _on_message(self, message: Message) -> None:
        if isinstance(message, POSTED):
            self.posted.append(message)
        await super()._on_message(message)

    def take(self, kind: type[Any]) -> list[Any]:
        """Messages of a kind since they were last taken."""
        found = [message for message in self.posted if isinstance(message, kind)]
        self.posted = [message for message in self.posted if not isinstance(message, kind)]
        return found


def play(widgets: Widget | Sequence[Widget], scene: Scene, *, size: tuple[int, int] = (100, 20)) -> None:
    """Runs a scene in an application of the widgets."""

    async def main() -> None:
        app = PaneApp([widgets] if isinstance(widgets, Widget) else widgets)
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            await scene(app, pilot)

    asyncio.run(main())


async def until(pilot: Pilot[None], condition: Callable[[], object]) -> None:
    """Waits for the screen to be laid out."""
    for _ in range(500):
        if condition():
            return
        await pilot.pause(0.02)
    raise AssertionError("waited in vain")


def text(widget: Widget) -> str:
    """What a widget shows, line by line."""
    return "\n".join(widget.render_line(y).text for y in range(widget.size.height))


def title(widget: Widget) -> str:
    content = widget._border_title
    return content.plain if content is not None else ""


def busy_engine(steps: int = 55, **fields: Any) -> tuple[SyntheticEngine, EngineView]:
    """An engine with requests in all phases, prefix hits, chunks and evictions, and a view of it."""
    engine = SyntheticEngine(**{"num_blocks": 96, **fields})
    view = EngineView(clock=Clock())
    view.apply(engine.snapshot())
    for turn in range(steps):
        if turn % 3 == 0:
            kind = turn // 3 % 4
            engine.submit((40, 300, 130, 500)[kind], 8 + turn % 17, document=(0, 1, 2, -1)[kind])
        engine.step()
        view.apply(engine.update())
    return engine, view
