"""A conversation on the screen, and the worker that fetches its answers."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Any, ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding
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

    BINDINGS: ClassVar[Any] = (Binding("escape", "leave_edit", "Keep all"),)

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
        self._edited: int | None = None  # turn whose prompt is in the input line, to be asked instead
        self._draft = ""  # what stood there before

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
        if self._edited is not None and not await self._drop_from(self._edited, message.text):
            return
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
        turns = self.conversation.turns
        if not turns:
            self._refuse("nothing was asked yet")
            return
        self.action_leave_edit()
        prompt = turns[-1].prompt
        if await self._drop_from(len(turns) - 1, prompt):
            await self.ask(prompt)

    def edit_earlier(self) -> None:
        """The last prompt comes into the input line; with each further call the one before, round and round."""
        turns = len(self.conversation.turns)
        if not turns:
            self._refuse("nothing was asked yet")
        else:
            self.edit(turns - 1 if not self._edited else self._edited - 1)

    def edit(self, turn: int) -> None:
        """A prompt comes into the input line, to be changed and sent; until it is, the conversation stays."""
        if self.conversation.live_answer is not None:
            self._refuse("an answer is still being written: stop it first")
            return
        if self._edited is None:
            self._draft = self.composer.text
        self._edited = turn
        self._fill_composer(self.conversation.turns[turn].prompt)
        self._show_edit()
        self.query(TurnView)[turn].scroll_visible(animate=False)

    def action_leave_edit(self) -> None:
        """The conversation stays as it is."""
        if self._edited is not None:
            self._edited = None
            self._fill_composer(self._draft)
            self._show_edit()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        return self._edited is not None if action == "leave_edit" else True

    @on(TurnView.EditWanted)
    def _edit_wanted(self, message: TurnView.EditWanted) -> None:
        message.stop()
        self.edit(next(place for place, turn in enumerate(self.conversation.turns) if turn is message.turn))

    def _fill_composer(self, text: str) -> None:
        self.composer.text = text
        self.composer.move_cursor(self.composer.document.end)
        self.composer.focus()

    def _show_edit(self) -> None:
        for place, view in enumerate(self.query(TurnView)):
            view.set_class(place == self._edited, "-edited")
            view.set_class(self._edited is not None and place >= self._edited, "-gives-way")
        words = ""
        if self._edited is not None:
            words = f"prompt {self._edited + 1} of {len(self.conversation.turns)}: Enter asks anew, Escape keeps all"
        self.composer.border_title = Content(words)
        self.refresh_bindings()

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

    async def _drop_from(self, turn: int, prompt: str) -> bool:
        """Makes room for `prompt`; where it could not be asked, all stays and the person is told why."""
        if self.link is None:
            return self._refuse("there is no server yet")
        if not prompt.strip():
            return self._refuse("the prompt is empty")
        try:
            self.conversation.take_back(turn)
        except ValueError as error:
            return self._refuse(str(error))
        await self.turns.remove_children(list(self.query(TurnView))[turn:])
        self._edited = None
        self._show_edit()
        self.post_message(self.Changed(self.conversation))
        return True

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
