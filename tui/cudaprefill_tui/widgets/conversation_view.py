"""A conversation on the screen, and the worker that fetches its answers."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass

from textual import on, work
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.widgets import Static

from ..conversations import Conversation, Turn
from ..engine_link import AnswerEnded, AnswerStream, AnswerText, EngineLink, LinkError
from .chat_turn import TurnView
from .composer import Composer

STOP_SECONDS = 2.0  # a server that does not say "cancelled" within this time is hung up on
WELCOME = "Ask something below. What the engine does with it shows in the other panes."


class TurnList(VerticalScroll, can_focus=True):
    """Follows its end while it is there, and only then."""

    def follow(self) -> None:
        self.anchor()
        self._hold_to_top()

    def watch_virtual_size(self) -> None:
        self._hold_to_top()

    def on_resize(self) -> None:
        self._hold_to_top()

    def _hold_to_top(self) -> None:
        """What does not fill the place stands at its top; an anchor would pull it down."""
        overflows = self.virtual_size.height > self.scrollable_content_region.height
        if overflows != self.is_anchored:
            self.anchor(overflows)


class ConversationView(Vertical):
    """One tab of the chat. Posts Changed when its title or its state may have."""

    @dataclass
    class Changed(Message):
        conversation: Conversation

    @dataclass
    class Refused(Message):
        """Something that was asked for cannot be done, and why."""

        reason: str

    def __init__(self, conversation: Conversation) -> None:
        super().__init__()
        self.conversation = conversation
        self.link: EngineLink | None = None
        self.turns = TurnList()
        self.composer = Composer()
        self._greeting = WELCOME  # what stands in the empty conversation
        self._welcome = Static(Content(WELCOME), classes="welcome")
        self._stream: AnswerStream | None = None
        self._live_view: TurnView | None = None
        self._seen = -1  # of the link, by its version

    def compose(self) -> ComposeResult:
        with self.turns:
            yield self._welcome
        yield self.composer

    def update_link(self, link: EngineLink | None, notice: str) -> None:
        """`notice`: what stands in the empty conversation."""
        self.link = link
        if not self.conversation.turns and (notice or WELCOME) != self._greeting:
            self._greeting = notice or WELCOME
            self._welcome.update(Content(self._greeting))
        if self._live_view is not None and link is not None and link.version != self._seen:
            self._seen = link.version
            if self._stream is not None:
                self._live_view.turn.answer.response_id = self._stream.response_id
            self._live_view.show_progress(link)

    # --- What the person does ---

    @on(Composer.Sent)
    async def _send(self, message: Composer.Sent) -> None:
        message.stop()
        if await self.ask(message.text):
            self.composer.clear()

    @on(Composer.Scrolled)
    def _scroll(self, message: Composer.Scrolled) -> None:
        message.stop()
        if message.pages < 0:
            self.turns.scroll_page_up(animate=False)
        else:
            self.turns.scroll_page_down(animate=False)

    async def ask(self, prompt: str) -> bool:
        """Whether the prompt was sent; if not, the person was told why."""
        if self.link is None:
            return self._refuse("there is no server yet")
        try:
            turn = self.conversation.ask(prompt)
        except ValueError as error:
            return self._refuse(str(error))
        self._welcome.display = False
        view = TurnView(turn)
        await self.turns.mount(view)
        self.turns.follow()
        self._answer(self.link, turn, view)
        self.post_message(self.Changed(self.conversation))
        return True

    async def regenerate(self) -> None:
        prompt = await self._take_back_last()
        if prompt is not None:
            await self.ask(prompt)

    async def edit_last(self) -> None:
        """The last prompt comes back into the input line, to be changed and sent."""
        prompt = await self._take_back_last()
        if prompt is not None:
            self.composer.text = prompt
            self.composer.move_cursor(self.composer.document.end)
            self.composer.focus()

    async def stop(self) -> None:
        """Asks the server to end the answer; hangs up on one that does not hear."""
        if self._stream is not None:
            with contextlib.suppress(LinkError):
                await self._stream.cancel()
            self.set_timer(STOP_SECONDS, self._hang_up_on(self._stream))

    def _hang_up_on(self, stream: AnswerStream):  # type: ignore[no-untyped-def]
        async def hang_up() -> None:
            if self._stream is stream:
                self.workers.cancel_node(self)

        return hang_up

    async def _take_back_last(self) -> str | None:
        if not self.conversation.turns:
            self._refuse("nothing was asked yet")
            return None
        try:
            prompt = self.conversation.take_back(len(self.conversation.turns) - 1)
        except ValueError as error:
            self._refuse(str(error))
            return None
        await self.query(TurnView).last().remove()
        self.post_message(self.Changed(self.conversation))
        return prompt

    def _refuse(self, reason: str) -> bool:
        self.post_message(self.Refused(reason))
        return False

    # --- The answer comes ---

    @work(exclusive=True, group="answer")
    async def _answer(self, link: EngineLink, turn: Turn, view: TurnView) -> None:
        answer, self._live_view = turn.answer, view
        stream = self._stream = link.respond(self.conversation.messages(), self.conversation.settings)
        try:
            async with contextlib.aclosing(stream):
                async for event in stream:
                    answer.response_id = stream.response_id
                    if isinstance(event, AnswerText):
                        answer.text += event.text
                        answer.state = "streaming"
                        view.add_text(event.text)
                    elif isinstance(event, AnswerEnded):
                        answer.cost, answer.cut = link.cost_with_telemetry(event.cost, answer.response_id), event.cut
            answer.state = "stopped" if answer.cut == "stopped" else "done"
        except LinkError as error:
            answer.state, answer.error = "failed", str(error)
        except asyncio.CancelledError:
            answer.state = "stopped"
        finally:
            self._stream = self._live_view = None
        if view.is_attached:
            await view.finish()
        self.post_message(self.Changed(self.conversation))
