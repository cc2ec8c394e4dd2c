"""The columns of the request table: what each shows, how wide it is, and by what it sorts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from cudaprefill.client.engine_view import EngineView
from cudaprefill.protocol.telemetry import RequestRecord

from ..cells import one_line
from ..figures import milliseconds
from ..glyphs import Glyphs

PHASES = {"waiting": "waiting", "prefilling": "prefill", "decoding": "decode", "finished": "done"}


@dataclass(frozen=True)
class Column:
    """`width` cells, a space before included; `flexible` ones share what is left. The lowest ranks stay longest.

    text: None for a column that is drawn, not written.
    """

    name: str
    width: int
    rank: int
    sort_key: Callable[[RequestRecord, EngineView], float | str]
    text: Callable[[RequestRecord, EngineView], str] | None
    align: Literal["left", "right"] = "right"
    flexible: bool = False


def _seconds(value: float | None) -> str:
    return "" if value is None else milliseconds(max(value, 0.0))


def _num_blocks(record: RequestRecord, view: EngineView) -> int:
    return len(view.blocks.owners.get(record.number, ()))


def _blocks_text(record: RequestRecord, view: EngineView) -> str:
    return str(_num_blocks(record, view) or "")


def _state_text(record: RequestRecord, view: EngineView) -> str:
    if record.state == "waiting":
        again = f"preempted {record.preemptions} times, " if record.preemptions else ""
        return f"{again}{waiting_reason(record, view)}"
    if record.state == "prefilling":
        return f"chunk {record.num_chunks}, {record.computed_tokens}/{view.prefill_tokens(record.number)}"
    tokens = f"{record.output_tokens}/{record.max_tokens}" if record.max_tokens else f"{record.output_tokens}"
    if record.state == "finished":
        return f"{record.finish_reason or 'ended'}, {record.output_tokens} tokens"
    return f"{tokens} tokens"


def waiting_reason(record: RequestRecord, view: EngineView) -> str:
    """What the first of the queue lacks; the others wait for it."""
    last = view.steps[-1].record if view.steps else None
    if last is None or not last.waiting_for or view.first_waiting() != record.number:
        return "in the queue"
    return f"for {one_line(last.waiting_for)}"


def _id_text(record: RequestRecord) -> str:
    """Behind its adapter's name: ids are long, and what does not fit is cut off."""
    return one_line(record.id if record.adapter is None else f"{record.adapter} · {record.id}")


_ORDER = {"prefilling": 0, "decoding": 1, "waiting": 2, "finished": 3}
MISSING = float("inf")

NUMBER = Column("no", 6, 0, lambda r, v: r.number, lambda r, v: f"r{r.number}")
PHASE = Column("phase", 10, 0, lambda r, v: _ORDER[r.state], None, align="left")
STATE = Column("state", 14, 0, lambda r, v: r.output_tokens, _state_text, align="left", flexible=True)
PROGRESS = Column("prefill", 13, 1, lambda r, v: r.computed_tokens / max(v.prefill_tokens(r.number), 1), None, "left")
TTFT = Column("TTFT", 10, 2, lambda r, v: _or_missing(v.ttft_of(r.number)), lambda r, v: _seconds(v.ttft_of(r.number)))
ITL = Column("ITL p50", 9, 3, lambda r, v: _or_missing(v.itl_p50(r.number)), lambda r, v: _seconds(v.itl_p50(r.number)))
PROMPT = Column("prompt", 8, 4, lambda r, v: r.prompt_tokens, lambda r, v: str(r.prompt_tokens))
HIT = Column("hit", 7, 5, lambda r, v: r.hit_tokens, lambda r, v: str(r.hit_tokens or ""))
ID = Column("id", 12, 6, lambda r, v: r.id, lambda r, v: _id_text(r), align="left", flexible=True)
BLOCKS = Column("blocks", 8, 7, _num_blocks, _blocks_text)
COLUMNS = (NUMBER, PHASE, PROGRESS, PROMPT, HIT, BLOCKS, TTFT, ITL, STATE, ID)


def _or_missing(value: float | None) -> float:
    return MISSING if value is None else value


def lay_out(width: int, owners: bool) -> list[tuple[Column, int]]:
    """The columns that fit, in order, with their widths. `owners`: whether it is known whose the blocks are."""
    shown: list[Column] = []
    left = width - 1  # the cursor's mark
    for column in sorted(COLUMNS, key=lambda column: column.rank):
        if column is BLOCKS and not owners:
            continue
        if column.rank == 0 or column.width <= left:
            shown.append(column)
            left -= column.width
        else:
            break
    flexible = [column for column in COLUMNS if column in shown and column.flexible]
    widths = {column: column.width for column in shown}
    if left < 0:
        widths[STATE] = max(STATE.width + left, 0)
    for place, column in enumerate(flexible):
        share = max(left, 0) // (len(flexible) - place)
        widths[column] += share
        left -= share
    return [(column, widths[column]) for column in COLUMNS if column in shown]


def phase_glyph(record: RequestRecord, glyphs: Glyphs) -> str:
    if record.state == "finished":
        return glyphs.finished if record.finish_reason in ("stop", "length") else glyphs.failed
    return {"waiting": glyphs.waiting, "prefilling": glyphs.prefilling, "decoding": glyphs.decoding}[record.state]
