"""Why so slow: where the time of a request went, and what one step did."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from textual.content import Content

from cudaprefill.client.engine_view import EngineView, StepView
from cudaprefill.protocol.account import Account, Part
from cudaprefill.protocol.account_text import late_token_lines, part_detail, prefix_text
from cudaprefill.protocol.itl_target import itl_target_number

from ..cells import wrap_words
from ..figures import milliseconds
from ..glyphs import Glyphs
from ..printable import displayable
from ..step_bar import bar_parts
from .dialog import MUTED, Page, Piece

BAR = 30  # cells
KIND, TIME, SHARE, TOKENS = 14, 10, 5, 7
MOST_PARTS = 100  # the longest; the screen is not the place for thousands
LEAST_SHARE = 1 / 200  # what is shorter is only counted, unless it is a chunk
MOST_REQUESTS = 24  # of a step, named one by one
STYLES = {
    "queued": "$warning",
    "preempted": "$warning",
    "chunk": "$primary",
    "left out": "$error",
}
ID = re.compile(r"[\w-]{6,}")


def explain_page(account: Account, view: EngineView, glyphs: Glyphs) -> Page:
    """Other requests are named as the panes name them, where `view` knows them."""
    names = {record.id: f"r{number}" for number, record in view.requests.items()}
    name = names.get(account.id)
    return Page(
        f"Where the time of {name or account.id} went" if name else "Where the time went",
        lambda width: _account_lines(account, width, glyphs, lambda text: _renamed(text, names)),
    )


def _account_lines(account: Account, width: int, glyphs: Glyphs, say: Callable[[str], str]) -> Iterable[Piece]:
    first = f"First token after {milliseconds(account.ttft)}" if account.ttft is not None else "No token yet"
    facts = [first, f"{account.prompt_tokens:,} prompt tokens", f"{account.output_tokens:,} output tokens"]
    if account.preemptions:
        facts.append(f"preempted {account.preemptions} times")
    facts.append(account.finish_reason or account.state)
    yield Content.styled(" · ".join(facts), "bold")
    yield ""
    shown = _worth_a_row(account)
    for part in shown:
        yield _bar(part, account.total, glyphs)
        if detail := part_detail(part):
            yield from _muted(say(detail), width)
    rest = [part for part in account.parts if part not in shown]
    if rest:
        seconds = sum(part.duration for part in rest)
        count = f"{len(rest)} shorter parts" if len(rest) > 1 else "1 shorter part"
        yield Content.styled(f"{count}, {milliseconds(seconds)} in all", MUTED)
    yield f"{'total':{KIND}} {' ' * BAR}{milliseconds(account.total):>{TIME}}"
    if account.incomplete:
        yield "Steps of its time are no longer known: what it waited for is missing above."
    if account.prefix is not None:
        yield ""
        yield Content.styled("Prefix cache", "bold")
        yield from _indented(say(prefix_text(account.prefix, None)), width)
    if account.itl_limit is not None:
        yield ""
        yield Content.styled("Gaps between tokens", "bold")
        for line in late_token_lines(account):
            yield from _indented(say(line), width)


def _worth_a_row(account: Account) -> list[Part]:
    parts = [part for part in account.parts if part.kind == "chunk" or part.duration >= account.total * LEAST_SHARE]
    if len(parts) > MOST_PARTS:
        least = sorted((part.duration for part in parts), reverse=True)[MOST_PARTS - 1]
        parts = [part for part in parts if part.duration >= least][:MOST_PARTS]
    return parts


def _bar(part: Part, total: float, glyphs: Glyphs) -> Content:
    """Where the part lies in time."""
    begin = min(_cell(part.start, total), BAR - 1)
    length = max(_cell(part.start + part.duration, total) - begin, 1)
    full, light, heavy, lightest = glyphs.fills
    fill = {"chunk": full, "left out": heavy, "queued": light, "preempted": light}.get(part.kind, lightest)
    style = STYLES.get(part.kind, MUTED)
    share = part.duration / total if total else 0.0
    return Content.assemble(
        (f"{part.kind:{KIND}} ", style),
        " " * begin,
        (fill * length, style),
        " " * (BAR - begin - length),
        f"{milliseconds(part.duration):>{TIME}}{share:{SHARE}.0%}",
    )


def _cell(seconds: float, total: float) -> int:
    """The sum of a start and a duration is not exactly the next start: halves must fall on the same side."""
    return round(seconds / total * BAR + 1e-6) if total else 0


def _indented(text: str, width: int) -> Iterable[str]:
    return (f"  {line}" for line in wrap_words(text, width))


def _renamed(text: str, names: dict[str, str]) -> str:
    return ID.sub(lambda match: names.get(match[0], match[0]), text)


# --- A step ---


def step_page(step: StepView, view: EngineView, glyphs: Glyphs) -> Page:
    return Page(f"Step {step.record.number}", lambda width: _step_lines(step, view, width, glyphs))


def _step_lines(step: StepView, view: EngineView, width: int, glyphs: Glyphs) -> Iterable[Piece]:
    record = step.record
    target = itl_target_number(view.settings.itl_target_ms) if view.settings is not None else None
    yield Content.styled(
        f"{step.num_tokens:,} of {record.token_budget:,} tokens in {milliseconds(max(record.duration, 0.0))}", "bold"
    )
    if target and step.decodes and record.duration > target / 1e3:
        yield Content.styled(
            f"{record.duration * 1e3 - target:.0f} ms over the ITL target: {len(step.decodes)} streams waited for it",
            "$error",
        )
    yield ""
    parts = bar_parts(step, BAR)
    decodes = next((part.cells for part in parts if part.kind == "decode"), 0)
    cells = {part.number: part.cells for part in parts if part.kind == "chunk"}
    if step.decodes:
        yield f"{'decodes':{KIND}} {len(step.decodes):>{TOKENS},} tokens  {glyphs.decode * decodes}"
        yield from _muted(_requests(sorted(step.decodes)), width)
    begin = decodes
    for number, start, length, hits in record.chunks[:MOST_REQUESTS]:
        bar = glyphs.fills[0] * cells.get(number, 0)
        label = f"{f'chunk of r{number}':{KIND}} {length:>{TOKENS},} tokens  "
        yield Content.assemble(label, " " * begin, (bar, "$primary"))
        begin += len(bar)
        prompt = view.requests.get(number)
        whole = f" of {prompt.prompt_tokens:,}" if prompt is not None else ""
        found = f", {hits:,} before them from the prefix cache" if hits else ""
        yield from _muted(f"tokens {start:,} to {start + length - 1:,}{whole}{found}", width)
    if len(record.chunks) > MOST_REQUESTS:
        yield f"and {len(record.chunks) - MOST_REQUESTS} more chunks"
    yield f"{'left of budget':{KIND}} {max(record.token_budget - step.num_tokens, 0):>{TOKENS},} tokens"
    yield ""
    if record.preempted:
        yield f"{'preempted':{KIND}} {len(record.preempted):>{TOKENS},}"
        yield from _muted(_requests(record.preempted), width)
    yield f"{'waiting':{KIND}} {record.num_waiting:>{TOKENS},}"
    if record.waiting_for:
        yield from _muted(f"the first for lack of {record.waiting_for}", width)
    blocks = f"{record.blocks_freed:,} freed, {record.blocks_evicted:,} evicted"
    yield f"{'blocks':{KIND}} {record.blocks_taken:>{TOKENS},} taken, {blocks}"


def _requests(numbers: Sequence[int]) -> str:
    rest = len(numbers) - MOST_REQUESTS
    return " ".join(f"r{number}" for number in numbers[:MOST_REQUESTS]) + (f" and {rest} more" if rest > 0 else "")


def _muted(text: str, width: int) -> Iterable[Content]:
    return (Content.styled(line, MUTED) for line in _indented(displayable(text), width))
