"""The states of a request and the ways between them, as docs/scheduling.md draws them."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from cudaprefill.engine.request import FinishReason, Request, RequestState
from cudaprefill.engine.request_queue import RequestQueue
from cudaprefill.observe.events import RequestEventKind, RequestTokens

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cudaprefill import _core
    from cudaprefill.engine.request_events import RequestEvents


class RequestLifecycle:
    """All requests, each in the queue of its state. Each way to another state is a method, and is told.

    It decides nothing: who goes where, and when, is the scheduler's to say. The events of requests that end while ends
    are held back come with `tell_ends`.
    """

    def __init__(self, table: _core.RequestTable, events: RequestEvents) -> None:
        self.waiting = RequestQueue()
        self.prefilling = RequestQueue()
        self.decoding = RequestQueue()
        self._queues = {
            RequestState.WAITING: self.waiting,
            RequestState.PREFILLING: self.prefilling,
            RequestState.DECODING: self.decoding,
        }
        self._by_id: dict[str, Request] = {}
        self._arrivals = itertools.count(1)
        self._table = table
        self._events = events
        self._held_back: dict[Request, RequestTokens | None] | None = None

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._by_id.values())

    def get(self, request_id: str) -> Request | None:
        return self._by_id.get(request_id)

    @property
    def num_running(self) -> int:
        return len(self.prefilling) + len(self.decoding)

    @property
    def seats_taken(self) -> int:
        return len(self.decoding) + sum(1 + len(request.unforked_siblings) for request in self.prefilling)

    def refuse_ids_in_use(self, request: Request) -> None:
        """Raises ValueError if its id, or that of one of its siblings, is another's."""
        ids = [member.request_id for member in (request, *request.siblings)]
        for index, request_id in enumerate(ids):
            if request_id in self._by_id or request_id in ids[:index]:
                raise ValueError(f"request id {request_id!r} is in use")

    def enter(self, request: Request, max_length: int) -> None:
        """To WAITING, with its siblings. It ends with `max_length` tokens, those of the prompt among them."""
        members = (request, *request.siblings)
        if request.adapter is not None:
            request.adapter.begin_uses(len(members))
        for member in members:
            member.order = (request.priority, request.arrival_time, next(self._arrivals))
            self._by_id[member.request_id] = member
        params = request.sampling_params
        row = self._table.add(
            request.prompt_positions,
            max_length=max_length,
            min_length=min(request.prompt_length + params.min_tokens, max_length + 1),
            eos_token_ids=() if params.ignore_eos else request.eos_token_ids,
            stop_token_ids=params.stop_token_ids or (),
            extra_keys=request.extra_keys,
        )
        request.take_row(self._table, row)
        self.waiting.add(request)
        for member in members:
            self._events.tell_entered(member, request)

    def start_prefill(self, request: Request, hit_tokens: int) -> None:
        """WAITING to PREFILLING; `hit_tokens` of it were found in the prefix index."""
        self.waiting.remove(request)
        self.prefilling.add(request)
        request.state = RequestState.PREFILLING
        request.admission_hit_tokens = hit_tokens
        for member in (request, *request.unforked_siblings):
            if request.num_preemptions == 0:
                member.num_hit_tokens = hit_tokens
            self._events.tell(RequestEventKind.SCHEDULED, member, hit_tokens=hit_tokens)

    def preempt(self, request: Request) -> None:
        """Takes its blocks away: back to WAITING, where its arrival puts it."""
        self._queues[request.state].remove(request)
        self._table.preempt(request.row)
        request.state = RequestState.WAITING
        self.waiting.add(request)
        for member in (request, *request.unforked_siblings):
            member.num_preemptions += 1
            self._events.tell(RequestEventKind.PREEMPTED, member)

    def start_decoding(self, lead: Request, now: float) -> None:
        """PREFILLING to DECODING; its siblings are forked, and share all its blocks so far."""
        self.prefilling.remove(lead)
        siblings = lead.unforked_siblings
        lead.forked = True
        for sibling in siblings:
            sibling.take_row(self._table, self._table.fork(lead.row))
        for member in (lead, *siblings):
            member.state = RequestState.DECODING
            self.decoding.add(member)
            if member.first_token_time is None:
                member.first_token_time = now
                self._events.tell(RequestEventKind.FIRST_TOKEN, member)

    def finish(self, request: Request, reason: FinishReason, stop_reason: int | str | None = None) -> None:
        """From any state to FINISHED, with the siblings that still depend on it.

        Does nothing if it has ended; but while its end is held back, the reason can still be mended.
        """
        if self._by_id.get(request.request_id) is not request:
            if self._held_back is not None and request in self._held_back:
                request.finish_reason, request.stop_reason = reason, stop_reason
            return
        for sibling in request.unforked_siblings:
            self.finish(sibling, reason, stop_reason)
        queue = self._queues[request.state]
        if request in queue:  # an unforked sibling is in none
            queue.remove(request)
        tokens = self._events.tokens_of(request)
        request.leave_row()
        request.state = RequestState.FINISHED
        request.finish_reason, request.stop_reason = reason, stop_reason
        del self._by_id[request.request_id]
        if request.adapter is not None:
            request.adapter.end_use()
        if self._held_back is None:
            self._events.tell_finished(request, tokens)
        else:
            self._held_back[request] = tokens

    def hold_back_ends(self) -> None:
        """Who ends from now on may still turn out to have ended otherwise."""
        self._held_back = {}

    def tell_ends(self) -> list[Request]:
        """Those that were held back, in order; none is from now on."""
        ended, self._held_back = self._held_back or {}, None
        for request, tokens in ended.items():
            self._events.tell_finished(request, tokens)
        return list(ended)

    def check(self) -> None:
        """Raises RuntimeError naming the first request that is not where its state says."""
        queued = 0
        for state, queue in self._queues.items():
            for request in queue:
                queued += 1 + len(request.unforked_siblings)
                if request.state is not state or self._by_id.get(request.request_id) is not request:
                    raise RuntimeError(
                        f"request {request.request_id!r} is {request.state.value} in the {state.value} queue"
                    )
        if queued != len(self._by_id):
            raise RuntimeError(f"{queued} requests are queued or run, {len(self._by_id)} are known")
