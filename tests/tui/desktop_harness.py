"""A desktop on fake links, driven by Pilot."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from textual.pilot import Pilot
from textual.widgets import Static

from cudaprefill_tui.app import CudaprefillApp, Setup
from cudaprefill_tui.conversations import ChatSettings, Conversation
from cudaprefill_tui.engine_link import EngineLink
from cudaprefill_tui.screens.desktop import DesktopScreen
from cudaprefill_tui.session import Session
from cudaprefill_tui.widgets.conversation_view import ConversationView
from tests.tui.fake_link import FakeLink
from tests.tui.synthetic import SyntheticEngine

PATIENCE = 500  # times a fiftieth of a second


class Desktop:
    def __init__(self, app: CudaprefillApp, pilot: Pilot[None], preferences: Path) -> None:
        self.app, self.pilot, self.preferences = app, pilot, preferences
        self.told: list[str] = []

    @property
    def screen(self) -> DesktopScreen:
        return self.app.desktop

    @property
    def link(self) -> FakeLink:
        link = self.screen.session.link
        assert isinstance(link, FakeLink)
        return link

    @property
    def view(self) -> ConversationView:
        return self.screen.chat.current

    @property
    def conversation(self) -> Conversation:
        return self.view.conversation

    @property
    def dialog(self) -> str:
        """The title of the dialog in front, "" where there is none, or none that has its place on the screen yet."""
        box = self.app.screen.query(".dialog")
        return str(box.first().border_title) if box and box.first().region.area else ""

    @property
    def toasts(self) -> list[str]:
        return [notification.message for notification in self.app._notifications]

    async def until(self, condition: Callable[[], object]) -> None:
        for _ in range(PATIENCE):
            if condition():
                return
            await self.pilot.pause(0.02)
        raise AssertionError(f"waited in vain; dialog {self.dialog!r}, told {self.toasts}")

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.pilot.pause()

    async def type(self, text: str) -> None:
        self.view.composer.insert(text)
        await self.pilot.pause()

    async def ask(self, prompt: str) -> None:
        """Asks, and waits for the answer."""
        await self.type(prompt)
        await self.press("enter")
        await self.until(lambda: self.conversation.turns and not self.conversation.live_answer)
        await self.pilot.pause()

    def text(self, selector: str) -> str:
        """What the Statics that match show, in all screens."""
        return "\n".join(str(widget.content) for widget in self.app.screen.query(selector).results(Static))


@contextlib.asynccontextmanager
async def desktop(
    tmp_path: Path,
    *links: EngineLink,
    size: tuple[int, int] = (120, 40),
    chat: ChatSettings | None = ChatSettings(),  # noqa: B008  (frozen)
    notice: str = "",
) -> AsyncIterator[Desktop]:
    """Without links: one FakeLink. With `notice`: none at all."""
    path = tmp_path / "terminal-ui.json"
    attached = [] if notice else list(links) or [FakeLink()]
    session = Session(attached, lambda url, key: FakeLink(url), notice)
    app = CudaprefillApp(Setup(session, None, chat, path))
    async with app.run_test(size=size, notifications=True) as pilot:
        await pilot.pause()
        yield Desktop(app, pilot, path)


def feed(desk: Desktop, steps: int = 5) -> SyntheticEngine:
    """Streams that decode, a long prompt among them, and one that finished."""
    engine = SyntheticEngine(num_blocks=400, budget=96, cap=40, max_num_seqs=16)
    for place in range(4):
        engine.submit(90, 40, document=place)
    for _ in range(6):
        engine.step()
    desk.link.apply(engine.snapshot())
    engine.submit(200, 30, document=9)
    for _ in range(steps):
        engine.step()
        desk.link.apply(engine.update())
    desk.screen.tick()
    return engine
