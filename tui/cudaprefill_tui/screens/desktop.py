"""The desktop: it composes the parts, carries state down to them, and does what they and the person ask for.

The commands of the Chat, Engine and Load menus have files of their own.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, ClassVar

from textual import on, work
from textual.app import ComposeResult

from .. import themes
from ..clipboard import copy
from ..commands import CommandProvider
from ..conversations import Answer, AnswerCost, ChatSettings
from ..engine_link import EngineLink, LinkError
from ..glyphs import UNICODE, Glyphs
from ..keymap import COMMANDS, MENUS, bindings, commands
from ..messages import (
    ExplainWanted,
    MenuChosen,
    PanesShown,
    RequestHovered,
    RequestSelected,
    StepSelected,
    StepWanted,
)
from ..playback import PlaybackLink
from ..preferences import Preferences
from ..printable import displayable
from ..session import Session
from ..widgets.engine_pane import EnginePane
from ..widgets.key_bar import KeyBar
from ..widgets.load_pane import LoadPane
from ..widgets.menu_bar import Menu, MenuBar, MenuItem
from .chat_commands import ChatCommands
from .engine_commands import EngineCommands
from .explain_page import explain_page, step_page
from .pages import about_page, cost_page, help_page

MOST_TICKS = 12  # a second
SLOW_TICK = 1.0  # seconds; without news the panes are looked after so often: marks fade, windows move on


class DesktopScreen(ChatCommands, EngineCommands):
    BINDINGS: ClassVar[Any] = bindings()
    COMMANDS: ClassVar[Any] = {CommandProvider}

    def __init__(
        self, session: Session, chat: ChatSettings | None, preferences: Preferences, glyphs: Glyphs = UNICODE
    ) -> None:
        super().__init__(session, chat, preferences, glyphs)
        self.menu_bar = MenuBar(_menus(self.with_chat, session.is_playback))
        self._ticked_at = 0.0  # by time.monotonic()
        self._next_tick: asyncio.TimerHandle | None = None
        self._pointed: int | None = None

    def compose(self) -> ComposeResult:
        yield self.menu_bar
        yield self.desk
        yield KeyBar()

    def on_mount(self) -> None:
        for link in self.session.links:
            self._keep(link)
        self.set_interval(SLOW_TICK, self._look_after)
        self.tick()
        self.desk.show(self.desk.current)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if (action in _CHAT_ACTIONS and not self.with_chat) or (
            action in _PLAY_ACTIONS and not self.session.is_playback
        ):
            return False
        if action == "stop_answer" and self.is_mounted:
            return self.chat.current.conversation.live_answer is not None
        return True

    # --- State goes down ---

    def attach(self, url: str, api_key: str | None) -> None:
        known = len(self.session.links)
        link = self.session.attach(url, api_key)
        if len(self.session.links) > known:
            self._keep(link)
        self.tick()

    async def detach(self, url: str) -> None:
        await self.session.detach(url)
        self.tick()

    def _keep(self, link: EngineLink) -> None:
        link.on_news = lambda: self._news_of(link)
        self._run_link(link)

    @work(group="links")
    async def _run_link(self, link: EngineLink) -> None:
        await link.run()

    def _news_of(self, link: EngineLink) -> None:
        """All news of one turn of the event loop make one tick, and so do those that come faster than MOST_TICKS."""
        if link is self.session.link and self._next_tick is None:
            delay = self._ticked_at + 1 / MOST_TICKS - time.monotonic()
            self._next_tick = asyncio.get_running_loop().call_later(max(delay, 0.0), self._tick_for_news)

    def _tick_for_news(self) -> None:
        self._next_tick = None
        try:
            if self.is_running:
                with self.app._context():
                    self.tick()
        except Exception as error:
            self.app._handle_exception(error)

    def _look_after(self) -> None:
        if time.monotonic() - self._ticked_at >= SLOW_TICK / 2:
            self.tick()

    @on(PanesShown)
    def _fill_panes(self) -> None:
        self.tick()
        self.desk.take_focus()

    def tick(self) -> None:
        self._ticked_at = time.monotonic()
        link = self.session.link
        self.menu_bar.show_status(displayable(self.session.status()))
        if self._chat is not None:
            self._chat.update_link(link, _notice(self.session))
        for pane in self.desk.visible_panes:
            if isinstance(pane, LoadPane):
                pane.update_load(self.session.generator)
            if link is not None:
                pane.update_view(link.view)

    @on(RequestSelected)
    @on(RequestHovered)
    def _point(self, message: RequestSelected | RequestHovered) -> None:
        message.stop()
        if message.number != self._pointed:
            self._pointed = message.number
            for pane in self.desk.panes.values():
                pane.highlight(message.number)

    # --- Commands of File, View and Help ---

    @on(MenuChosen)
    async def _menu_chosen(self, message: MenuChosen) -> None:
        message.stop()
        await self.run_action(message.action)

    def action_menu(self, letter: str = "") -> None:
        if not letter or not self.menu_bar.open_mnemonic(letter):
            self.menu_bar.open()

    def action_next_pane(self) -> None:
        self.desk.move_focus(1)

    def action_previous_pane(self) -> None:
        self.desk.move_focus(-1)

    def action_zoom(self) -> None:
        self.desk.zoom()

    def action_toggle_pane(self, name: str) -> None:
        self.desk.toggle(name)
        for pane in self.desk.panes:
            self.menu_bar.set_item(f"toggle_pane('{pane}')", checked=pane not in self.desk.hidden)

    def action_reset_layout(self) -> None:
        self.desk.reset()

    def action_next_theme(self) -> None:
        self.app.theme = themes.next_theme(self.app.theme)

    def action_preset(self, name: str) -> None:
        pane, link = self.desk.query_one(EnginePane), self.session.link
        if link is None or link.view.engine is None:
            self.tell("there is no engine yet", failed=True)
            return
        pane.update_view(link.view)  # it may not have been seen yet
        pane.apply_preset(name)

    def action_help(self) -> None:
        self.app.push_screen(help_page(self.with_chat, self.session.is_playback))

    def action_about(self) -> None:
        link = self.session.link
        self.app.push_screen(about_page(link.view.engine if link else None, link.url if link else ""))

    def action_explain(self) -> None:
        """What is under the cursor of the pane in focus; otherwise the last answer of the chat."""
        steps, requests = self.desk.steps.list, self.desk.requests
        if self.desk.current == "steps" and steps.cursor is not None:
            self._show_step(steps.cursor)
        elif self.desk.current == "requests" and requests.current is not None:
            self._explain(requests.current.id)
        elif answer := self._last_asked():
            self._explain(answer.response_id, answer.cost)
        else:
            self.tell("nothing was asked yet; in Requests and in Steps, choose a row first", failed=True)

    def _last_asked(self) -> Answer | None:
        turns = self.chat.current.conversation.turns if self._chat is not None else []
        answers = (turn.answer for turn in reversed(turns))
        return next((answer for answer in answers if answer.response_id or answer.cost), None)

    @on(ExplainWanted)
    def _explain_wanted(self, message: ExplainWanted) -> None:
        message.stop()
        self._explain(message.request_id)

    @work(exclusive=True, group="explain")
    async def _explain(self, request_id: str, cost: AnswerCost | None = None) -> None:
        """The server's account; where there is none, what was measured here."""
        link = self.session.link
        if link is None:
            self.tell("there is no server yet", failed=True)
            return
        try:
            account = await link.explain(request_id)
        except LinkError as error:
            number = link.view.number_of(request_id)
            cost = cost or (link.cost_of(number) if number is not None else None)
            if cost is None:
                self.tell(str(error), failed=True)
            else:
                self.app.push_screen(cost_page(cost, str(error)))
            return
        self.app.push_screen(explain_page(account, link.view, self.desk.glyphs))

    @on(StepSelected)
    def _step_selected(self, message: StepSelected) -> None:
        message.stop()
        self._show_step(message.number)

    def _show_step(self, number: int) -> None:
        link = self.session.link
        step = link.view.step_view(number) if link is not None else None
        if link is None or step is None:
            self.tell(f"step {number} is no longer known", failed=True)
        else:
            self.app.push_screen(step_page(step, link.view, self.desk.glyphs))

    @on(StepWanted)
    def _step_wanted(self, message: StepWanted) -> None:
        """The step that made a token late."""
        message.stop()
        if self.desk.steps.jump_to(message.number):
            self.desk.show("steps")
        else:
            self.tell(f"step {message.number} is no longer known", failed=True)

    # --- Playback ---

    def action_pause(self) -> None:
        self._recording.paused = not self._recording.paused
        self.tick()

    def action_change_speed(self, factor: float) -> None:
        self._recording.change_speed(factor)
        self.tick()

    @property
    def _recording(self) -> PlaybackLink:
        assert isinstance(self.session.link, PlaybackLink)
        return self.session.link

    # --- Copying ---

    def action_copy_text(self) -> None:
        """The selection or, without one, the last answer as the model wrote it."""
        selected = self.get_selected_text()
        if selected:
            self.copy(selected, "selection")
            return
        answer = self.chat.current.conversation.last_answer if self._chat is not None else None
        self.copy(answer.text if answer is not None else "", "answer" if self.with_chat else "selection")

    @work(thread=True, group="clipboard")
    def copy(self, text: str, what: str) -> None:
        """In a thread: a desktop's clipboard tool may take its time."""
        driver = self.app._driver
        write: Callable[[str], None] | None = driver.write if driver is not None and not driver.is_headless else None
        copied = copy(text, write, what)
        self.app.call_from_thread(self.tell, copied.message, failed=copied.failed)


_CHAT_ACTIONS = {command.action.partition("(")[0] for command in COMMANDS if command.chat} - {"toggle_pane"}
_PLAY_ACTIONS = {command.action.partition("(")[0] for command in COMMANDS if command.play}


def _menus(with_chat: bool, is_playback: bool) -> list[Menu]:
    menus = []
    for name, label in MENUS.items():
        items: list[MenuItem | None] = []
        for command in commands(with_chat, is_playback):
            if command.menu == name:
                if command.rule and items:
                    items.append(None)
                keys = command.keys.split(",")[0]
                checked = True if command.action.startswith("toggle_pane") else None
                items.append(MenuItem(command.label, command.action, keys, checked=checked))
        if items:
            menus.append(Menu(label, items))
    return menus


def _notice(session: Session) -> str:
    link = session.link
    if link is None:
        return session.notice
    if link.state in ("lost", "refused"):
        return f"{link.name}: {link.reason}"
    return f"Connecting to {link.name} …" if link.state == "connecting" else ""
