"""A request seen from its client: deltas as they come, and the output that they add up to."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator

from cudaprefill.engine.output_delta import OutputDelta
from cudaprefill.engine.request import Request
from cudaprefill.errors import SlowReaderError
from cudaprefill.outputs import CompletionOutput, RequestOutput

MAX_PENDING_BYTES = 2**20  # of a reader that does not say how many
_MERGE_AT = 256  # unread deltas, so that they take little more memory than what is in them


class _Stream:
    """What both kinds of stream share."""

    def __init__(self, request: Request, prompt: str | None, abort: Callable[[], object]) -> None:
        """`prompt` is the text of the request's prompt, where it was given as text; `abort` ends the request."""
        outputs = [CompletionOutput(index, "", []) for index in range(1 + len(request.siblings))]
        self.output = RequestOutput(request.request_id, prompt, list(request.prompt_token_ids), outputs, finished=False)
        self._abort = abort

    def abort(self) -> None:
        """Asks the engine to stop; iteration goes on to the last deltas, which say "abort". Harmless when finished."""
        if not self.output.finished:
            self._abort()

    def _apply(self, delta: OutputDelta) -> OutputDelta:
        """Adds a delta to the output. Raises the error of a request that failed."""
        self.output.finished = delta.request_finished
        if delta.error is not None:
            self.output.outputs[delta.index].finish_reason = delta.finish_reason
            raise delta.error
        output = self.output.outputs[delta.index]
        output.token_ids += delta.token_ids
        output.text += delta.text
        if delta.logprobs is not None:
            output.logprobs = (output.logprobs or []) + delta.logprobs
        output.finish_reason, output.stop_reason = delta.finish_reason, delta.stop_reason
        if delta.index == 0 and delta.metrics is not None:
            self.output.metrics = delta.metrics
        if delta.prompt_logprobs is not None:
            self.output.prompt_logprobs = delta.prompt_logprobs
        return delta


class RequestStream(_Stream):
    """Iterate for the deltas of all outputs; `output` is their sum so far.

    An exception while waiting (KeyboardInterrupt, say) loses nothing: iteration can go on. A loop that is left early
    leaves the request running, unless it is inside `with stream:`, which aborts it at the end.
    """

    def __init__(self, request: Request, prompt: str | None, abort: Callable[[], object]) -> None:
        super().__init__(request, prompt, abort)
        self._mail: queue.SimpleQueue[list[OutputDelta]] = queue.SimpleQueue()
        self._complete = threading.Event()  # the last delta is in the mail
        self._deltas: list[OutputDelta] = []

    def deliver(self, deltas: list[OutputDelta]) -> None:
        """The mailbox of this request."""
        self._mail.put(deltas)
        if deltas[-1].request_finished:
            self._complete.set()

    def __iter__(self) -> Iterator[OutputDelta]:
        return self

    def __next__(self) -> OutputDelta:
        if not self._deltas:
            if self.output.finished:
                raise StopIteration
            self._deltas = self._mail.get()
        return self._apply(self._deltas.pop(0))

    def __enter__(self) -> RequestStream:
        return self

    def __exit__(self, *exception: object) -> None:
        self.abort()

    def wait(self) -> RequestOutput:
        """The whole output. Sleeps until it is there: waking for each token would take the cores from the next step."""
        self._complete.wait()
        for _ in self:
            pass
        return self.output


class AsyncRequestStream(_Stream):
    """The same for asyncio, with `async with stream:`, which aborts the request at a break or a cancellation too."""

    def __init__(self, request: Request, prompt: str | None, abort: Callable[[], object]) -> None:
        super().__init__(request, prompt, abort)
        self._mail: deque[OutputDelta] = deque()  # unread
        self._mail_came = asyncio.Event()
        self._max_pending_bytes: int | None = None  # not None: deltas of one output are merged
        self._pending_bytes = 0
        self._merge_at = _MERGE_AT
        self._overflow: SlowReaderError | None = None

    def deliver(self, delta: OutputDelta) -> None:
        """Called in the event loop."""
        if self._overflow is not None:
            self.output.finished |= delta.request_finished
            return
        self._mail.append(delta)
        self._mail_came.set()
        if self._max_pending_bytes is not None:
            self._pending_bytes += delta.size
            self._check_pending(self._max_pending_bytes)
            if len(self._mail) >= self._merge_at:
                self._merge_mail()
                self._merge_at = 2 * len(self._mail) + _MERGE_AT

    def merged(self, max_pending_bytes: int = MAX_PENDING_BYTES) -> AsyncIterator[OutputDelta]:
        """Iterates, from now on, over as few deltas as the reader is slow: what waits of one output comes as one.

        When more than about `max_pending_bytes` of text, tokens and log-probabilities wait unread, the request is
        aborted, what waits is lost, and iteration raises SlowReaderError with both numbers.
        """
        self._max_pending_bytes = max_pending_bytes
        self._pending_bytes = sum(delta.size for delta in self._mail)
        self._check_pending(max_pending_bytes)
        return self

    def _check_pending(self, limit: int) -> None:
        if self._pending_bytes > limit:
            self._overflow = SlowReaderError(
                f"{self._pending_bytes} bytes of the output of request {self.output.request_id!r} wait unread, "
                f"the limit is {limit}"
            )
            self.output.finished |= self._mail[-1].request_finished
            self._mail.clear()
            self._mail_came.set()
            self.abort()

    def __aiter__(self) -> AsyncIterator[OutputDelta]:
        return self

    async def __anext__(self) -> OutputDelta:
        if self._overflow is None and self.output.finished:
            raise StopAsyncIteration
        await self._mail_came.wait()
        if self._overflow is not None:
            raise self._overflow
        if self._max_pending_bytes is not None:
            self._merge_mail()
            self._pending_bytes -= self._mail[0].size
        delta = self._mail.popleft()
        if not self._mail:
            self._mail_came.clear()
        return self._apply(delta)

    def _merge_mail(self) -> None:
        """One delta for each output that has any, in the order in which these have waited."""
        if len(self._mail) < 2:
            return
        by_output: dict[tuple[int, bool], list[OutputDelta]] = {}
        for delta in self._mail:  # an error stays by itself: what came before it is not lost
            by_output.setdefault((delta.index, delta.error is not None), []).append(delta)
        merged = [OutputDelta.merged(own) if len(own) > 1 else own[0] for own in by_output.values()]
        finished = any(delta.request_finished for delta in merged)
        for delta in merged:
            delta.request_finished = finished and delta is merged[-1]
        self._mail = deque(merged)

    async def __aenter__(self) -> AsyncRequestStream:
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.abort()

    async def wait(self) -> RequestOutput:
        """The whole output."""
        async with self:
            async for _ in self:
                pass
        return self.output
