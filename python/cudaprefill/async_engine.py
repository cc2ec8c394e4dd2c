"""The engine for asyncio programs: servers above all."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from types import TracebackType
from typing import Any, TypeVar

from cudaprefill.config import EngineConfig
from cudaprefill.engine.engine import Engine
from cudaprefill.engine.engine_thread import EngineThread
from cudaprefill.engine.factory import EngineInfo, EngineParts, build_engine
from cudaprefill.engine.input_processor import Prompt
from cudaprefill.engine.output_delta import OutputDelta
from cudaprefill.engine.request import Request
from cudaprefill.engine.request_stream import AsyncRequestStream
from cudaprefill.errors import EngineDeadError
from cudaprefill.observe.event_hub import EventHub
from cudaprefill.protocol.itl_target import ItlTarget
from cudaprefill.protocol.telemetry import EngineSettings
from cudaprefill.sampling_params import SamplingParams
from cudaprefill.text.chat_template import Message

Progress = Callable[[float, float], None]
Result = TypeVar("Result")


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
        self.events = EventHub(self._loop, self._listen)
        self._engine = EngineThread(parts.engine, self.events.hand_over, parts.idle_work)
        self.adapters = parts.input_processor.adapters
        self.most_requests = parts.engine.scheduler.config.most_requests  # that can run or wait at once; None: any
        self._trace = parts.trace
        if self._trace is not None:
            self.events.subscribe(self._trace.record_all)
        if parts.spans is not None:
            self.events.subscribe(parts.spans)

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
        cache_salt: str | None = None,
        adapter: str | None = None,
        arrival_time: float | None = None,
        executor: Executor | None = None,
    ) -> AsyncRequestStream:
        """Continues a prompt. Raises ValueError saying what is wrong with it.

        request_id: one of the caller's own; None: a new one.
        adapter: the name of one that is loaded.
        arrival_time: when the request was received, by time.monotonic(); None: now.
        executor: where the prompt is tokenized; None: the event loop's default.

        Iterating the stream raises ValueError or QueueFullError if the engine refuses the request, and EngineDeadError
        if the engine stops.
        """
        process = functools.partial(
            self._input_processor.process_prompt,
            self._new_id() if request_id is None else request_id,
            prompt,
            SamplingParams() if sampling_params is None else sampling_params,
            priority=priority,
            arrival_time=time.monotonic() if arrival_time is None else arrival_time,
            cache_salt=cache_salt,
            adapter=adapter,
        )
        request, text = await asyncio.get_running_loop().run_in_executor(executor, process)
        return self._submit(request, text)

    async def chat(
        self,
        messages: Sequence[Message],
        sampling_params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
        adapter: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        arrival_time: float | None = None,
        executor: Executor | None = None,
    ) -> AsyncRequestStream:
        """Answers a conversation through the model's chat template. Otherwise as `generate`.

        chat_template_kwargs: variables of the template, such as enable_thinking of Qwen3.
        """
        process = functools.partial(
            self._input_processor.process_chat,
            self._new_id() if request_id is None else request_id,
            messages,
            SamplingParams() if sampling_params is None else sampling_params,
            priority=priority,
            arrival_time=time.monotonic() if arrival_time is None else arrival_time,
            cache_salt=cache_salt,
            adapter=adapter,
            chat_template_kwargs=chat_template_kwargs,
        )
        request = await asyncio.get_running_loop().run_in_executor(executor, process)
        return self._submit(request, None)

    async def load_adapter(self, name: str, folder: str | os.PathLike[str], *, in_place: bool = False) -> None:
        """Reads an adapter as PEFT saves it. Raises AdapterError saying what is wrong, or that the name is taken.

        in_place: one of the same name gives way, if there is one; its requests end with what they began with.
        """
        await asyncio.to_thread(self.adapters.load, name, folder, in_place=in_place)

    async def unload_adapter(self, name: str) -> None:
        """Refuses new requests for the adapter at once, and returns when the last running one has ended.

        Raises UnknownAdapterError.
        """
        adapter = self.adapters.withdraw(name)
        # In the engine's thread, so that it comes after all requests that were handed over before.
        await asyncio.wrap_future(await self.call(lambda engine: adapter.unload()))

    async def abort(self, request_id: str) -> bool:
        """Ends a request wherever it is; its last deltas say "abort". False for an id that is unknown or finished."""
        ended = await asyncio.wrap_future(self._engine.abort(request_id))
        return ended > 0

    async def abort_all(self) -> int:
        """Ends all requests, and returns how many there were."""
        return await asyncio.wrap_future(self._engine.abort_all())

    @property
    def settings(self) -> EngineSettings:
        """What `change_settings` changes."""
        return self._engine.settings

    async def change_settings(
        self,
        *,
        max_num_batched_tokens: int | None = None,
        long_prefill_token_threshold: int | None = None,
        itl_target_ms: ItlTarget | None = None,
    ) -> EngineSettings:
        """Changes those that are given, from the next step on, and returns all. An `itl_target_ms` of 0 takes it away.

        Raises ValueError naming the setting and both numbers; nothing is changed then.
        """
        settings = await self.call(
            lambda engine: engine.change_settings(
                max_num_batched_tokens=max_num_batched_tokens,
                long_prefill_token_threshold=long_prefill_token_threshold,
                itl_target_ms=itl_target_ms,
            )
        )
        self.events.touch()
        return settings

    async def call(self, function: Callable[[Engine], Result]) -> Result:
        """The result of `function(engine)`, run in the engine's thread between two steps: keep it short.

        What happened before has been told to all listeners of `events` when it is here, and maybe something of later
        steps too. Where that order matters, hand the result over in `function`, by `events.post`.
        Raises EngineDeadError if the engine has stopped.
        """
        return await asyncio.wrap_future(self._engine.call(function))

    async def reset_prefix_cache(self) -> None:
        """Forgets all cached prefixes."""
        await self.call(lambda engine: engine.scheduler.reset_prefix_cache())
        self.events.touch()

    @property
    def error(self) -> BaseException | None:
        """Why the engine stopped by itself, if it did."""
        return self._engine.error

    def stuck_for(self) -> float:
        """Seconds that the current step has lasted; 0.0 when there is none."""
        return self._engine.stuck_for()

    async def close(self) -> None:
        """Ends all requests and the engine's thread. Harmless when repeated."""
        await asyncio.to_thread(self._engine.close)
        if self._trace is not None:
            await asyncio.to_thread(self._trace.close)

    async def __aenter__(self) -> AsyncEngine:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _new_id(self) -> str:
        return f"request-{uuid.uuid4().hex}"  # never one that a caller gave

    def _listen(self, wanted: bool) -> None:
        with contextlib.suppress(EngineDeadError):  # nothing happens in it any more
            self._engine.call(lambda engine: engine.listen(self.events if wanted else None))

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
