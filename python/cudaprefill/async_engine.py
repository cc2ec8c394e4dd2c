"""The engine for asyncio programs: servers above all."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from cudaprefill.config import EngineConfig
from cudaprefill.engine.engine_thread import EngineThread
from cudaprefill.engine.factory import EngineInfo, EngineParts, build_engine
from cudaprefill.engine.input_processor import Prompt
from cudaprefill.engine.output_delta import OutputDelta
from cudaprefill.engine.request import Request
from cudaprefill.engine.request_stream import AsyncRequestStream
from cudaprefill.sampling_params import SamplingParams
from cudaprefill.text.chat_template import Message

Progress = Callable[[float, float], None]


class AsyncEngine:
    """Takes requests in one event loop, steps in a thread of its own, tokenizes in a pool of threads.

    async with await AsyncEngine.load() as engine:
        async with await engine.generate("The capital of France is", SamplingParams(max_tokens=8)) as stream:
            async for delta in stream:
                print(delta.text, end="")
    """

    def __init__(self, parts: EngineParts) -> None:
        """Must be called in the event loop that will use it; see `load`."""
        self.info: EngineInfo = parts.info
        self.tokenizer = parts.tokenizer
        self._input_processor = parts.input_processor
        self._loop = asyncio.get_running_loop()
        self._streams: dict[str, AsyncRequestStream] = {}
        self._engine = EngineThread(parts.engine)
        self._ids = itertools.count()

    @classmethod
    async def load(
        cls, model: str | os.PathLike[str] | None = None, *, load_progress: Progress | None = None, **settings: Any
    ) -> AsyncEngine:
        """As `LLM`, without blocking the loop. Raises ValueError or OSError saying what is wrong."""
        config = EngineConfig(model=model, **settings)
        return cls(await asyncio.to_thread(build_engine, config, load_progress))

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        priority: int = 0,
    ) -> AsyncRequestStream:
        """Continues a prompt. Raises ValueError saying what is wrong with it.

        Iterating the stream raises ValueError or QueueFullError if the engine refuses the request, and EngineDeadError
        if the engine stops.
        """
        request, text = await asyncio.to_thread(
            self._input_processor.process_prompt,
            self._new_id() if request_id is None else request_id,
            prompt,
            SamplingParams() if sampling_params is None else sampling_params,
            priority=priority,
            arrival_time=time.monotonic(),
        )
        return self._submit(request, text)

    async def chat(
        self,
        messages: Sequence[Message],
        sampling_params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> AsyncRequestStream:
        """Answers a conversation through the model's chat template. Otherwise as `generate`."""
        request = await asyncio.to_thread(
            self._input_processor.process_chat,
            self._new_id() if request_id is None else request_id,
            messages,
            SamplingParams() if sampling_params is None else sampling_params,
            priority=priority,
            arrival_time=time.monotonic(),
            cache_salt=cache_salt,
        )
        return self._submit(request, None)

    async def reset_prefix_cache(self) -> None:
        """Forgets all cached prefixes."""
        await asyncio.wrap_future(self._engine.call(lambda engine: engine.scheduler.reset_prefix_cache()))

    @property
    def error(self) -> BaseException | None:
        """Why the engine stopped by itself, if it did."""
        return self._engine.error

    async def close(self) -> None:
        """Ends all requests and the engine's thread. Harmless when repeated."""
        await asyncio.to_thread(self._engine.close)

    async def __aenter__(self) -> AsyncEngine:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _new_id(self) -> str:
        return f"request-{next(self._ids)}"

    def _submit(self, request: Request, text: str | None) -> AsyncRequestStream:
        request_id = request.request_id
        if request_id in self._streams:
            raise ValueError(f"request id {request_id!r} is in use")
        stream = AsyncRequestStream(request, text, lambda: self._engine.abort(request_id))
        self._streams[request_id] = stream
        try:
            self._engine.submit(request, self._mailbox)
        except BaseException:
            del self._streams[request_id]
            raise
        return stream

    def _mailbox(self, deltas: list[OutputDelta]) -> None:
        """In the engine's thread: one call into the loop for all that a step made."""
        self._loop.call_soon_threadsafe(self._deliver, deltas)

    def _deliver(self, deltas: list[OutputDelta]) -> None:
        for delta in deltas:
            self._streams[delta.request_id].deliver(delta)
            if delta.request_finished:
                del self._streams[delta.request_id]
