"""The chat: conversations in tabs."""

from __future__ import annotations

from textual import on
from textual.app import ComposeResult
from textual.content import Content
from textual.widget import Widget
from textual.widgets import TabbedContent, TabPane

from cudaprefill.client.engine_view import EngineView

from ..conversations import ChatSettings, Conversation
from ..engine_link import EngineLink
from ..printable import displayable
from .conversation_view import ConversationView
from .pane import Pane

ADD = "add-conversation"


class ChatPane(Pane):
    """At least one conversation, always."""

    TITLE = "Chat"

    def __init__(self, settings: ChatSettings, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._settings = settings  # of new conversations
        self._count = 0
        self._link: EngineLink | None = None
        self._notice = ""

    def compose(self) -> ComposeResult:
        with TabbedContent():
            yield self._new_tab()
            yield TabPane(Content("+"), id=ADD)

    @property
    def tabs(self) -> TabbedContent:
        return self.query_one(TabbedContent)

    @property
    def current(self) -> ConversationView:
        tab = self.tabs.active_pane
        return (self.query(ConversationView) if tab is None or tab.id == ADD else tab.query(ConversationView)).first()

    @property
    def views(self) -> list[ConversationView]:
        return list(self.query(ConversationView))

    def update_view(self, view: EngineView) -> None:
        """The engine's state shows in the conversations, by `update_link`."""

    def update_link(self, link: EngineLink | None, notice: str = "") -> None:
        self._link, self._notice = link, notice
        for view in self.views:
            view.update_link(link, notice)

    async def new_conversation(self) -> None:
        tab = self._new_tab()
        await self.tabs.add_pane(tab, before=ADD)
        self.tabs.active = str(tab.id)
        view = tab.query_one(ConversationView)
        view.update_link(self._link, self._notice)
        view.composer.focus()

    async def close_conversation(self) -> None:
        """Its answer is stopped with it. The last one gives way to a new one."""
        view = self.current
        tab = next(tab for tab in self.query(TabPane) if view in tab.walk_children())
        if len(self.views) == 1:
            await self.new_conversation()
        else:
            self.move(-1 if view is self.views[-1] else 1)  # or Textual would go on to the tab that adds one
        await self.tabs.remove_pane(str(tab.id))

    def move(self, places: int) -> None:
        """To the tab so many places to the right, round and round."""
        tabs = [tab for tab in self.query(TabPane) if tab.id != ADD]
        current = next(place for place, tab in enumerate(tabs) if tab.query_one(ConversationView) is self.current)
        self.tabs.active = str(tabs[(current + places) % len(tabs)].id)
        self.current.composer.focus()

    @property
    def focus_target(self) -> Widget | None:
        return self.current.composer

    @on(TabbedContent.TabActivated)
    async def _activated(self, event: TabbedContent.TabActivated) -> None:
        event.stop()
        if event.pane.id == ADD:
            await self.new_conversation()

    @on(ConversationView.Changed)
    def _retitle(self, message: ConversationView.Changed) -> None:
        message.stop()
        self.refresh_bindings()  # whether there is an answer to stop
        for tab in self.query(TabPane):
            if tab.id != ADD and tab.query_one(ConversationView).conversation is message.conversation:
                mark = "● " if message.conversation.live_answer is not None else ""
                self.tabs.get_tab(tab).label = Content(f"{mark}{displayable(message.conversation.title)}")

    def _new_tab(self) -> TabPane:
        self._count += 1
        conversation = Conversation(self._count, self._settings)
        return TabPane(Content(conversation.title), ConversationView(conversation), id=f"conversation-{self._count}")
