"""What widgets tell the application. Messages go up; state comes down by method and attribute."""

from __future__ import annotations

from dataclasses import dataclass

from textual.message import Message

from cudaprefill.protocol.itl_target import ItlTarget


@dataclass
class MenuChosen(Message):
    """An entry of the menu bar; `action` is what the entry was given."""

    action: str


@dataclass
class SplitMoved(Message):
    """The divider of a Split came to rest; `split` is its id, `fraction` the first child's share."""

    split: str | None
    fraction: float


@dataclass
class PanesShown(Message):
    """Other panes are seen than before: they know nothing of what happened meanwhile."""


@dataclass
class RequestSelected(Message):
    """A request was chosen in a pane, or none any more: all panes light up what is its."""

    number: int | None


@dataclass
class RequestHovered(Message):
    """The pointer or the cursor is over something of a request."""

    number: int | None


@dataclass
class BlockClicked(Message):
    """Asks for all that is known of a block."""

    block: int


@dataclass
class StepSelected(Message):
    """A row of the step list was chosen."""

    number: int


@dataclass
class StepWanted(Message):
    """The step list shall show a step: the one that made a token late."""

    number: int


@dataclass
class ExplainWanted(Message):
    """Why was this request slow?"""

    number: int
    request_id: str


@dataclass
class AbortWanted(Message):
    """A request shall end."""

    number: int
    request_id: str


@dataclass
class OwnersWanted(Message):
    """Whether telemetry shall say which blocks a request's table names (`TelemetrySubscribe.owners`)."""

    wanted: bool


@dataclass
class SettingsWanted(Message):
    """Live settings to change; None leaves one as it is, an ITL target of 0 takes it away.

    source: what the user chose, for a toast ("preset RAG").
    """

    max_num_batched_tokens: int | None = None
    long_prefill_token_threshold: int | None = None
    itl_target_ms: ItlTarget | None = None
    source: str = ""
