"""What all endpoints share: the engine, which may die and come back, and who is being served."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from cudaprefill.async_engine import AsyncEngine
from cudaprefill.engine.factory import EngineParts
from cudaprefill.errors import EngineDeadError
from cudaprefill.server.config import ServerConfig
from cudaprefill.server.errors import RETRY_AFTER, ApiError

logger = logging.getLogger(__name__)

WATCH_SECONDS = 0.1  # how often the engine is looked at
LARGE_INPUT = 64 * 1024  # bytes of a request's body
ABORT_SECONDS = 5.0  # after the abort at a shutdown, for clients to be told

EngineListener = Callable[[AsyncEngine], None]


class ServerState:
    """Handlers find it as `request.app.state.server`.

    threads: tokenizing, templates, JSON: whatever would hold up the event loop. They are also the event loop's default,
        so `asyncio.to_thread` runs there.
    model_names: what clients may call the model; the first is the one that answers carry.
    draining: the server is shutting down and admits nobody.
    in_flight: requests that are being answered.
    hurry: those in flight get no more time.
    died: set when the engine has died and is not to come back.
    on_first_sent: is told the id of a request when its first token was written to its client.
    """

    def __init__(self, config: ServerConfig, build: Callable[[], EngineParts]) -> None:
        """`build` makes an engine; it takes its time, and is called again where a dead engine is to be restarted."""
        self.config = config
        self.threads = ThreadPoolExecutor(max(2, len(os.sched_getaffinity(0))), thread_name_prefix="cudaprefill-server")
        self._large_inputs = ThreadPoolExecutor(1, thread_name_prefix="cudaprefill-large-inputs")
        self.model_names: tuple[str, ...] = config.served_model_names
        self.created = self.now()
        self.draining = False
        self.in_flight = 0
        self.hurry = False
        self.died = asyncio.Event()
        self.on_first_sent: Callable[[str], None] = lambda request_id: None
        self._build = build
        self._engine: AsyncEngine | None = None
        self._abort_error: ApiError | None = None
        self._listeners: list[EngineListener] = []
        self._watch: asyncio.Task[None] | None = None

    @property
    def engine(self) -> AsyncEngine:
        """Raises EngineDeadError while there is none that works."""
        if self._engine is None:
            raise EngineDeadError("the engine is being started")
        if self._engine.error is not None:
            raise EngineDeadError(f"the engine has stopped: {self._engine.error!r}")
        return self._engine

    def executor_for(self, size: int) -> ThreadPoolExecutor:
        """Where an input of `size` bytes is parsed and tokenized.

        Large ones share a single thread: the engine needs the cores, and small inputs must not queue behind them.
        """
        return self.threads if size <= LARGE_INPUT else self._large_inputs

    @staticmethod
    def now() -> int:
        """Seconds since 1970, as `created` in answers."""
        return int(time.time())

    async def start(self) -> None:
        """Builds the engine in the running loop and looks after it from then on."""
        asyncio.get_running_loop().set_default_executor(self.threads)
        await self._start_engine()
        self._watch = asyncio.create_task(self._restart_dead_engines())

    async def close(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        if self._engine is not None:
            await self._engine.close()
        for executor in (self.threads, self._large_inputs):
            executor.shutdown(wait=False, cancel_futures=True)

    def on_engine(self, listener: EngineListener) -> None:
        """Calls `listener` with the engine there is, and with every one that takes its place."""
        self._listeners.append(listener)
        if self._engine is not None:
            listener(self._engine)

    def refuse_while_draining(self) -> None:
        """Raises ApiError 503 when the server is shutting down."""
        if self.draining:
            headers = {"Connection": "close", **RETRY_AFTER}
            raise ApiError(503, "the server is shutting down", code="shutting_down", headers=headers)

    @contextlib.contextmanager
    def admit(self) -> Iterator[None]:
        """Around the answer to one request. Raises ApiError 503 when the server is shutting down."""
        self.refuse_while_draining()
        self.in_flight += 1
        try:
            yield
        finally:
            self.in_flight -= 1

    def raise_for_abort(self, finish_reason: str | None) -> None:
        """Raises the ApiError that tells a client why the server, not somebody's wish, aborted its request."""
        if finish_reason == "abort" and self._abort_error is not None:
            raise self._abort_error

    async def pause(self, seconds: float, patience: float) -> None:
        """Returns when nobody was served for `seconds`, or after `patience` seconds all the same."""
        now = last_busy = time.monotonic()
        give_up = now + patience
        while (self.in_flight or now < last_busy + seconds) and now < give_up:
            await asyncio.sleep(0.01)
            now = time.monotonic()
            if self.in_flight:
                last_busy = now

    async def drain(self, timeout: float) -> None:
        """Admits nobody more, gives those in flight `timeout` seconds, then aborts them and lets them be told."""
        self.draining = True
        start = time.monotonic()
        await self._until_idle(timeout)
        if not self.in_flight:
            return
        if not self.died.is_set():
            logger.warning(
                "aborting %d requests that are not done after %.1f s", self.in_flight, time.monotonic() - start
            )
        self._abort_error = ApiError(503, "aborted: the server is shutting down", code="shutting_down")
        give_up = time.monotonic() + ABORT_SECONDS
        while self.in_flight and time.monotonic() < give_up:
            with contextlib.suppress(EngineDeadError):
                await self.engine.abort_all()  # again and again: some were still being tokenized
            await asyncio.sleep(0.02)

    async def _until_idle(self, timeout: float) -> None:
        give_up = time.monotonic() + timeout
        while self.in_flight and not self.hurry and time.monotonic() < give_up:
            await asyncio.sleep(0.01)

    async def _start_engine(self) -> None:
        engine = AsyncEngine(await asyncio.to_thread(self._build))
        self.model_names = self.model_names or (engine.info.model,)
        for name in self.model_names:
            if name in engine.adapters:
                await engine.close()
                raise ValueError(f"{name!r} is the name of an adapter and of the model")
        self._engine = engine
        for listener in self._listeners:
            listener(engine)

    async def _restart_dead_engines(self) -> None:
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            if self._engine is None or self._engine.error is None:
                continue
            logger.error("the engine has stopped: %r", self._engine.error)
            if not self.config.restart_engine:
                break
            await self._engine.close()
            self._engine = None
            gc.unfreeze()
            gc.collect()  # the old weights and KV cache go before there are new ones
            try:
                await self._start_engine()
            except (ValueError, OSError, RuntimeError) as error:
                logger.error("the engine cannot be started again: %s", error)
                break
            logger.warning("the engine was started again")
        self.died.set()
