"""A server on the fake model, over real sockets, that must leave nothing behind when it ends."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, TypeVar

import httpx
import torch

from cudaprefill.adapters import AdapterRegistry
from cudaprefill.engine.batch import Batch
from cudaprefill.engine.engine import Engine
from cudaprefill.engine.factory import EngineInfo, EngineParts
from cudaprefill.server.config import ServerConfig
from cudaprefill.server.run import bound_socket, on_signal, run
from cudaprefill.server.state import ServerState
from tests.engine.harness import MAX_MODEL_LEN, make_engine, make_input_processor, pool_is_idle

Result = TypeVar("Result")
PATIENCE = 60.0  # seconds that anything may take on a busy machine
MODEL = "letters"


class PacedRunner:
    """The fake model at a pace: each step takes `seconds`, or as long as `gate` is closed."""

    def __init__(self, engine: Engine) -> None:
        self._runner = engine.model_runner
        self.fake: Any = engine.model_runner
        self.seconds = 0.0
        self.gate = threading.Event()
        self.gate.set()

    def run(self, batch: Batch) -> torch.Tensor:
        time.sleep(self.seconds)
        assert self.gate.wait(PATIENCE)
        return self._runner.run(batch)


class RunningServer:
    """`with RunningServer() as server: httpx.get(server.url + "/health")`.

    At the end no request, stream, task or thread may be left, and every block must be free or cached.
    """

    def __init__(self, *, pace: float = 0.0, config: dict[str, Any] | None = None, **engine_settings: Any) -> None:
        """`pace`: seconds of a step. `config`: of the server; the other settings are make_engine's."""
        self._config = ServerConfig(port=0, **{"served_model_names": (MODEL,), **(config or {})})
        self._engine_settings = engine_settings
        self._pace = pace
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="server-under-test")
        self._threads_before = set(threading.enumerate())
        self.builds = 0
        self.url = ""
        self.status: int | None = None
        self.error: BaseException | None = None
        self.state: ServerState
        self.engine: Engine  # the latest
        self.runner: PacedRunner
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event
        self._tasks_left: list[str] = []

    # --- What tests do with it ---

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def client(self, **options: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=PATIENCE, **options)

    def connect(self) -> socket.socket:
        """A bare TCP connection, for what a client library would not do."""
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def post_raw(self, path: str, body: dict[str, Any]) -> socket.socket:
        """A connection on which a request was sent and nothing was read yet."""
        connection = self.connect()
        content = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n\r\n"
        connection.sendall(head.encode() + content)
        return connection

    def await_(self, work: Coroutine[Any, Any, Result]) -> Result:
        """The result of a coroutine in the server's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE)

    def in_engine(self, function: Callable[[Engine], Result]) -> Result:
        """The result of `function(engine)` between two steps."""

        return self.await_(self.state.engine.call(function))

    def wait_until(self, condition: Callable[[], bool], what: str = "") -> None:
        give_up = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < give_up, f"waited {PATIENCE} s for {what or condition}"
            time.sleep(0.002)

    def wait_until_idle(self) -> None:
        """Until no request is in flight and the engine has nothing to do."""
        self.wait_until(lambda: self.state.in_flight == 0, "all answers to end")
        self.wait_until(lambda: not self.in_engine(lambda engine: engine.has_work()), "the engine to have no work")

    def check_idle(self) -> None:
        """Waits until all is quiet; then every block must be free or cached, and nobody be known any more."""
        self.wait_until_idle()
        assert self.in_engine(pool_is_idle)
        assert self.state.engine._engine._mailboxes == {}
        assert self.state.engine._streams == {}

    def stop(self) -> None:
        """What a signal does."""
        self._loop.call_soon_threadsafe(on_signal, self.state, self._stop)

    def join(self) -> int:
        """The exit status, once the server has ended."""
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error
        assert self.status is not None
        return self.status

    # --- Its life ---

    def __enter__(self) -> RunningServer:
        self._thread.start()
        assert self._ready.wait(PATIENCE)
        if self.error is not None:
            raise self.error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.runner.gate.set()
        if error is None and self._thread.is_alive() and not self.state.draining and not self.state.died.is_set():
            self.check_idle()
        if self._thread.is_alive():
            self.stop()
        self.join()
        if error is None:
            assert self.state.in_flight == 0
            assert self._tasks_left == []
            self.wait_until(lambda: set(threading.enumerate()) <= self._threads_before, "all threads to end")

    def make_adapters(self) -> AdapterRegistry:
        """For a server whose engine takes some."""
        return AdapterRegistry()

    def _build(self) -> EngineParts:
        self.builds += 1
        self.engine = make_engine(**self._engine_settings)
        self.runner = PacedRunner(self.engine)
        self.runner.seconds = self._pace
        self.engine.model_runner = self.runner  # type: ignore[assignment]
        input_processor = make_input_processor(self.make_adapters())
        return EngineParts(self.engine, input_processor, input_processor.tokenizer, _info(self.engine))

    def _run(self) -> None:
        try:
            self.status = asyncio.run(self._main())
        except BaseException as error:
            self.error = error
        finally:
            self._ready.set()

    async def _main(self) -> int:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self.state = ServerState(self._config, self._build)
        status = await run(self.state, bound_socket(self._config.host, 0), self._stop, self._announce)
        await asyncio.sleep(0)
        self._tasks_left = [repr(task) for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        return status

    def _announce(self, url: str) -> None:
        self.url = url
        self._ready.set()


def events(response: httpx.Response) -> list[dict[str, Any]]:
    """The events of a stream, which must end with [DONE]."""
    lines = [line for line in response.read().decode().split("\n\n") if line]
    assert lines[-1] == "data: [DONE]", lines
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def _info(engine: Engine) -> EngineInfo:
    config = engine.scheduler.config
    return EngineInfo(
        model=MODEL,
        family="fake",
        num_parameters=0,
        dtype="int64",
        kv_cache_dtype="int64",
        linear_math="int64",
        device="cpu",
        kernels="none",
        threads=1,
        max_model_len=MAX_MODEL_LEN,
        block_size=config.block_size,
        num_blocks=config.num_blocks,
        block_bytes=8 * config.block_size,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_num_seqs=config.max_num_seqs,
        enable_prefix_caching=config.enable_prefix_caching,
    )
