"""Keeps what is needed to explain the last requests of a running engine."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable

from cudaprefill.observe.events import RequestEvent, RequestEventKind, StepEvent
from cudaprefill.observe.explain.history import History, RequestHistory

MAX_REQUESTS = 1000  # that have finished; all others are kept
MAX_TOKENS = 4_000_000  # of the prompts and outputs of finished requests
MAX_STEPS = 20_000


class ExplainLog:
    """A listener of events. May be read in another thread than it listens in.

    block_size, prefix_caching: of the engine.
    """

    def __init__(
        self,
        *,
        block_size: int,
        prefix_caching: bool,
        max_requests: int = MAX_REQUESTS,
        max_tokens: int = MAX_TOKENS,
        max_steps: int = MAX_STEPS,
    ) -> None:
        self._block_size = block_size
        self._prefix_caching = prefix_caching
        self._max_requests = max_requests
        self._max_tokens = max_tokens
        self._lock = threading.Lock()
        self._requests: dict[int, RequestHistory] = {}
        self._finished: deque[int] = deque()
        self._num_tokens = 0  # of the finished ones
        self._steps: deque[StepEvent] = deque(maxlen=max_steps)

    def __call__(self, events: Iterable[RequestEvent | StepEvent]) -> None:
        for event in events:
            self.on_event(event)

    def on_event(self, event: RequestEvent | StepEvent) -> None:
        with self._lock:
            if isinstance(event, StepEvent):
                self._steps.append(event)
            elif event.kind is RequestEventKind.ARRIVED:
                request = self._requests[event.number] = RequestHistory(event)
                request.add(event)
            elif event.number in self._requests:
                self._requests[event.number].add(event)
                if event.kind is RequestEventKind.FINISHED:
                    self._keep_finished(event)

    def record_sent(self, request_id: str, time: float) -> None:
        """The first token of a request was written to its client; seconds of the engine's clock."""
        with self._lock:
            for request in reversed(self._requests.values()):
                if request.arrived.request_id == request_id:
                    request.sent_time = request.sent_time or time
                    return

    def history(self) -> History:
        """As it stands: later events do not change it."""
        with self._lock:
            requests = {
                number: RequestHistory(request.arrived, list(request.events), request.tokens, request.sent_time)
                for number, request in self._requests.items()
            }
            return History(requests, list(self._steps), self._block_size, self._prefix_caching)

    def _keep_finished(self, event: RequestEvent) -> None:
        self._finished.append(event.number)
        self._num_tokens += _num_tokens(self._requests[event.number])
        while len(self._finished) > self._max_requests or self._num_tokens > self._max_tokens:
            self._num_tokens -= _num_tokens(self._requests.pop(self._finished.popleft()))


def _num_tokens(request: RequestHistory) -> int:
    return 0 if request.tokens is None else len(request.tokens.prompt_token_ids) + len(request.tokens.output_token_ids)
