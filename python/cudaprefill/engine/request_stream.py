"""A request seen from its client: deltas as they come, and the output that they add up to."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Callable, Iterator

from cudaprefill.engine.output_delta import OutputDelta
from cudaprefill.engine.request import Request
from cudaprefill.outputs import CompletionOutput, RequestOutput


class _Stream:
    """What both kinds of stream share."""

    def __init__(self, request: Request, prompt: str | None, abort: Callable[[], None]) -> None:
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
        return delta


class RequestStream(_Stream):
    """Iterate for the deltas of all outputs; `output` is their sum so far.

    An exception while waiting (KeyboardInterrupt, say) loses nothing: iteration can go on. A loop that is left early
    leaves the request running, unless it is inside `with stream:`, which aborts it at the end.
    """

    def __init__(self, request: Request, prompt: str | None, abort: Callable[[], None]) -> None:
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

    def __init__(self, request: Request, prompt: str | None, abort: Callable[[], None]) -> None:
        super().__init__(request, prompt, abort)
        self._mail: asyncio.Queue[OutputDelta] = asyncio.Queue()

    def deliver(self, delta: OutputDelta) -> None:
        """Called in the event loop."""
        self._mail.put_nowait(delta)

    def __aiter__(self) -> AsyncIterator[OutputDelta]:
        return self

    async def __anext__(self) -> OutputDelta:
        if self.output.finished:
            raise StopAsyncIteration
        return self._apply(await self._mail.get())

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
