"""One request as the engine sees it, from its arrival to its last token."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from cudaprefill.adapters.virtual_tokens import NO_VIRTUAL_TOKENS, VirtualTokens

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cudaprefill._core import RequestTable
    from cudaprefill.adapters import Adapter
    from cudaprefill.sampling_params import SamplingParams
    from cudaprefill.text.grammar import Grammar

FinishReason = Literal["stop", "length", "abort", "error"]


class RequestState(enum.Enum):
    """Where a request is; docs/scheduling.md draws the ways between the states."""

    WAITING = "waiting"  # in the queue, or a sibling whose lead is not prefilled yet
    PREFILLING = "prefilling"  # holds blocks, its tokens are computed chunk by chunk
    DECODING = "decoding"  # one token a step
    FINISHED = "finished"


@dataclass(eq=False, kw_only=True)
class Request:
    """A prompt and what came of it. Compared and hashed by identity.

    prompt_token_ids: of its text. Positions, and the numbers below, count its virtual tokens too.
    extra_keys: what keeps equal token ids apart in the prefix index, tagged by kind:
        ("cache_salt", b"x"), ("adapter", b"<hash>"), ("prompt_logprobs", <random bytes, so that there are no hits>).
    priority: lower values leave the waiting queue first; among equals the earlier arrival does.
    siblings: the other completions of the same prompt (n > 1). They are forked from this request, copy-on-write, when
        its prefill ends, and are requests of their own from then on.
    """

    request_id: str
    prompt_token_ids: Sequence[int]
    sampling_params: SamplingParams
    eos_token_ids: Sequence[int] = ()
    arrival_time: float = 0.0  # seconds
    # When its prompt was tokens and its grammar compiled, seconds; None if nobody said.
    tokenized_time: float | None = None
    priority: int = 0
    extra_keys: tuple[tuple[str, bytes], ...] = ()
    adapter: Adapter | None = None
    virtual_tokens: VirtualTokens = NO_VIRTUAL_TOKENS  # in front of the prompt: the adapter's, then the caller's
    grammar: Grammar | None = None  # that the text of its output follows
    siblings: list[Request] = field(default_factory=list)

    state: RequestState = field(default=RequestState.WAITING, init=False)
    finish_reason: FinishReason | None = field(default=None, init=False)
    stop_reason: int | str | None = field(default=None, init=False)  # the stop token or string; None for EOS
    num_hit_tokens: int = field(default=0, init=False)  # of the prompt, found in the prefix index at first
    admission_hit_tokens: int = field(default=0, init=False, repr=False)  # until its first chunk tells of them
    num_preemptions: int = field(default=0, init=False)
    first_token_time: float | None = field(default=None, init=False)  # seconds of the scheduler's clock
    forked: bool = field(default=False, init=False)  # the siblings run on their own

    # The scheduler's: the place in its queues, and the row of its request table that holds the tokens.
    order: tuple[int, float, int] = field(default=(0, 0.0, 0), init=False, repr=False)
    row: int = field(default=-1, init=False, repr=False)
    _table: RequestTable | None = field(default=None, init=False, repr=False)
    _output_token_ids: list[int] = field(default_factory=list, init=False, repr=False)

    @property
    def finished(self) -> bool:
        return self.state is RequestState.FINISHED

    @property
    def number(self) -> int:
        """Counts from 1 in the order in which the scheduler got them; never given to another request."""
        return self.order[2]

    @property
    def prompt_length(self) -> int:
        """Slots and positions that its prompt takes, those of virtual tokens among them."""
        return self.virtual_tokens.num_tokens + len(self.prompt_token_ids)

    @property
    def prompt_positions(self) -> Sequence[int]:
        """The token id at each position of the prompt, below zero for virtual tokens."""
        virtual = self.virtual_tokens.token_ids
        return [*virtual, *self.prompt_token_ids] if virtual else self.prompt_token_ids

    @property
    def unforked_siblings(self) -> list[Request]:
        """Those that still depend on this request's prefill."""
        return [] if self.forked else [sibling for sibling in self.siblings if not sibling.finished]

    @property
    def output_token_ids(self) -> list[int]:
        """A copy of all tokens so far, the stop token among them; to follow a stream, take the tokens of each step."""
        return self._output_token_ids if self._table is None else self._table.output_token_ids(self.row)

    @property
    def num_output_tokens(self) -> int:
        if self._table is None:
            return len(self._output_token_ids)
        return self._table.num_tokens(self.row) - self.prompt_length

    def take_row(self, table: RequestTable, row: int) -> None:
        """From here on `table` holds the tokens."""
        self._table, self.row = table, row

    def leave_row(self) -> None:
        """Keeps the output and gives the row back."""
        if self._table is None:
            return
        self._output_token_ids = self._table.output_token_ids(self.row)
        self._table.remove(self.row)
        self._table, self.row = None, -1
