"""The prompts of one HTTP request while they are answered: what completions and chat completions do alike."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any

from cudaprefill.engine.output_delta import OutputDelta
from cudaprefill.engine.request_stream import AsyncRequestStream
from cudaprefill.outputs import RequestOutput
from cudaprefill.server.state import ServerState

Submission = Coroutine[Any, Any, AsyncRequestStream]
PromptDelta = tuple[int, OutputDelta]  # which prompt, and what it got


class Generation:
    """One stream a prompt. However it ends, `abort` must be called."""

    def __init__(self, state: ServerState, streams: Sequence[AsyncRequestStream]) -> None:
        self._state = state
        self._streams = streams
        self._sent: set[int] = set()  # prompts whose first delta was written to the client

    @classmethod
    async def submit(cls, state: ServerState, submissions: Sequence[Submission]) -> Generation:
        """Raises what was wrong with the first prompt that cannot be taken; then none is."""
        streams: dict[int, AsyncRequestStream] = {}

        async def submit(place: int, submission: Submission) -> None:
            streams[place] = await submission

        generation = None
        try:
            results = await asyncio.gather(*map(submit, range(len(submissions)), submissions), return_exceptions=True)
            for result in results:
                if result is not None:
                    raise result
            generation = cls(state, [streams[place] for place in range(len(submissions))])
        finally:
            if generation is None:
                for stream in streams.values():
                    stream.abort()
        return generation

    @property
    def outputs(self) -> list[RequestOutput]:
        """One a prompt, as far as their deltas were taken."""
        return [stream.output for stream in self._streams]

    async def wait(self) -> list[RequestOutput]:
        """The whole outputs. Raises what became of the first that failed."""
        try:
            await asyncio.gather(*(stream.wait() for stream in self._streams))
        except BaseException:
            self.abort()
            raise
        for output in self.outputs:
            for each in output.outputs:
                self._state.raise_for_abort(each.finish_reason)
        return self.outputs

    async def started(self) -> AsyncIterator[PromptDelta]:
        """The deltas as they come, once there is one: what the engine refuses is raised before anything is sent."""
        deltas = self._deltas()
        try:
            first = await anext(deltas)
        except BaseException:
            self.abort()
            raise
        return _chain(first, deltas)

    def abort(self) -> None:
        """Ends what is not finished."""
        for stream in self._streams:
            stream.abort()

    async def _deltas(self) -> AsyncIterator[PromptDelta]:
        limit = self._state.config.max_unread_output
        if len(self._streams) == 1:
            async for delta in self._streams[0].merged(limit):
                self._state.raise_for_abort(delta.finish_reason)
                yield 0, delta
                self._taken(0)
            return
        async for place, delta in _interleave(self._streams, limit):
            self._state.raise_for_abort(delta.finish_reason)
            yield place, delta
            self._taken(place)

    def _taken(self, place: int) -> None:
        """Whoever takes deltas has written one when it asks for the next: then a prompt's first one was sent."""
        if place not in self._sent:
            self._sent.add(place)
            self._state.on_first_sent(self._streams[place].output.request_id)


async def _chain(first: PromptDelta, rest: AsyncIterator[PromptDelta]) -> AsyncIterator[PromptDelta]:
    yield first
    async for delta in rest:
        yield delta


async def _interleave(streams: Sequence[AsyncRequestStream], max_pending_bytes: int) -> AsyncIterator[PromptDelta]:
    """What any stream has, in the order in which it came. Takes no more from them while nobody asks for more."""
    queue: asyncio.Queue[PromptDelta | BaseException | None] = asyncio.Queue(len(streams))

    async def pump(place: int, stream: AsyncRequestStream) -> None:
        try:
            async for delta in stream.merged(max_pending_bytes):
                await queue.put((place, delta))
            await queue.put(None)
        except Exception as error:
            await queue.put(error)

    pumps = [asyncio.create_task(pump(place, stream)) for place, stream in enumerate(streams)]
    try:
        running = len(pumps)
        while running:
            item = await queue.get()
            if item is None:
                running -= 1
            elif isinstance(item, BaseException):
                raise item
            else:
                yield item
    finally:
        for task in pumps:
            task.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
