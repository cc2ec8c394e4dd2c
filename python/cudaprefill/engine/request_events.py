"""What the scheduler tells of requests, and at which time it happened."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cudaprefill.observe.events import RequestEvent, RequestEventKind, RequestTokens

if TYPE_CHECKING:
    from collections.abc import Callable

    from cudaprefill import _core
    from cudaprefill.engine.request import Request


class RequestEvents:
    """Makes the events of requests; of none when nobody listens.

    moment: the time of what a step does, in seconds: its start, then when its tokens were known. None: now.
    """

    def __init__(
        self, listener: Callable[[RequestEvent], None] | None, clock: Callable[[], float], table: _core.RequestTable
    ) -> None:
        self.listener = listener
        self.step = 0
        self.moment: float | None = None
        self.recording_tokens = False
        self._clock = clock
        self._table = table

    def tokens_of(self, request: Request) -> RequestTokens | None:
        """If they are recorded, and for a request with a row: a sibling gets its own in the fork."""
        if not self.recording_tokens or request.row < 0:
            return None
        hashes = self._table.block_hashes(request.row)
        return RequestTokens(request.prompt_positions, request.output_token_ids, hashes)

    def tell(self, kind: RequestEventKind, request: Request, *, time: float | None = None, **fields: Any) -> None:
        """`fields`: those of RequestEvent that the kind names."""
        if self.listener is None:
            return
        if time is None:
            time = self._clock() if self.moment is None else self.moment
        self.listener(RequestEvent(kind, request.request_id, time, self.step, number=request.number, **fields))

    def tell_entered(self, member: Request, lead: Request) -> None:
        """It arrived, some time ago, and is queued now; what the prompt is the lead knows."""
        self.tell(
            RequestEventKind.ARRIVED,
            member,
            time=lead.arrival_time,
            priority=lead.priority,
            num_prompt_tokens=lead.prompt_length,
            num_virtual_tokens=lead.virtual_tokens.num_tokens,
            adapter=None if lead.adapter is None else lead.adapter.name,
            max_tokens=lead.sampling_params.max_tokens,
            tokens=self.tokens_of(member),
        )
        self.tell(RequestEventKind.QUEUED, member, tokenized=member.tokenized_time)

    def tell_finished(self, request: Request, tokens: RequestTokens | None) -> None:
        """`tokens`: `tokens_of` it before it gave its row back."""
        self.tell(
            RequestEventKind.FINISHED,
            request,
            reason=request.finish_reason,
            num_output_tokens=request.num_output_tokens,
            tokens=tokens,
        )
