"""One prompt and its answer."""

from __future__ import annotations

from dataclasses import dataclass

from textual import events, on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.timer import Timer
from textual.widgets import Static

from ..conversations import Turn
from ..engine_link import EngineLink
from ..figures import describe_cost
from ..printable import displayable
from .answer_markdown import AnswerMarkdown

FLUSH_SECONDS = 1 / 12  # text that came since is drawn at once: the cost of a token does not depend on their rate
BAR_WIDTH = 20
NOTES = {"stopped": "stopped", "failed": "failed"}


class TurnView(Vertical):
    """Shows a Turn. `add_text` while it streams, `finish` when its answer is no longer live."""

    @dataclass
    class EditWanted(Message):
        """Its prompt was clicked twice."""

        turn: Turn

    def __init__(self, turn: Turn) -> None:
        super().__init__()
        self.turn = turn
        self._prompt = Static(Content(displayable(turn.prompt)), classes="prompt")
        self._answer = AnswerMarkdown()
        self._note = Static(Content(""), classes="note")
        self._pending: list[str] = []
        self._timer: Timer | None = None

    def compose(self) -> ComposeResult:
        yield self._prompt
        yield self._answer
        yield self._note

    @on(events.Click, ".prompt")
    def _prompt_clicked(self, event: events.Click) -> None:
        if event.chain == 2:
            event.stop()
            self.post_message(self.EditWanted(self.turn))

    def on_mount(self) -> None:
        self.show_progress(None)

    def add_text(self, text: str) -> None:
        self._pending.append(displayable(text))
        if self._timer is None:
            self._note.update(Content(""))
            self._timer = self.set_interval(FLUSH_SECONDS, self._flush)

    async def _flush(self) -> None:
        if self._pending:
            text = "".join(self._pending)
            self._pending.clear()
            await self._answer.append(text)

    async def finish(self) -> None:
        """Draws what is left, and what the answer cost."""
        if self._timer is not None:
            self._timer.stop()
        await self._flush()
        self._timer = None
        answer = self.turn.answer
        parts = [answer.error or NOTES.get(answer.state, "") or answer.cut]
        if answer.cost is not None:
            parts.append(describe_cost(answer.cost))
        self._note.update(Content(displayable("\n".join(part for part in parts if part))))
        self._note.set_class(answer.state == "failed", "-failed")

    def show_progress(self, link: EngineLink | None) -> None:
        """Until the first word: where the request is. `link` knows by its telemetry, None: nothing is known yet."""
        answer = self.turn.answer
        if answer.state == "waiting":
            self._note.update(Content(_progress(answer.response_id, link)))


def _progress(response_id: str, link: EngineLink | None) -> str:
    number = link.view.number_of(response_id) if link is not None and response_id else None
    record = link.view.requests.get(number) if link is not None and number is not None else None
    if link is None or record is None:
        return "sent …"
    if record.state == "waiting":
        ahead = sum(other.state == "waiting" and other.number < record.number for other in link.view.requests.values())
        return f"waiting in the queue, {ahead} ahead"
    done = record.computed_tokens / record.prompt_tokens if record.prompt_tokens else 0.0
    filled = round(min(done, 1.0) * BAR_WIDTH)
    hits = f", {record.hit_tokens} from the prefix cache" if record.hit_tokens else ""
    bar = f"▕{'█' * filled}{'░' * (BAR_WIDTH - filled)}▏"
    return f"prefill {bar} {record.computed_tokens} of {record.prompt_tokens} tokens{hits}"
