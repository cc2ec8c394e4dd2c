"""Runs the application on uvicorn, from the socket to the exit status."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator

import uvicorn

from cudaprefill.async_engine import AsyncEngine
from cudaprefill.engine.factory import EngineParts
from cudaprefill.garbage import uncollected
from cudaprefill.server.app import create_app
from cudaprefill.server.config import ServerConfig
from cudaprefill.server.http_protocol import HttpProtocol
from cudaprefill.server.state import ServerState

# Between a token and its byte on the socket lies a change of threads. Python's own 5 ms would be most of that time.
SWITCH_INTERVAL = 0.0005  # seconds
# Connections whose clients do not read get so long to take what is left for them, before they are cut off.
CLOSE_SECONDS = 2
# What a start leaves is done once nobody was served for so long, and not later than that.
SETTLE_PAUSE, SETTLE_PATIENCE = 0.2, 5.0
# Longer than clients keep idle connections, so that none sends a request into one that is just being closed.
KEEP_ALIVE_SECONDS = 75

# Files that a process has open beside its connections.
OTHER_FILES = 64

logger = logging.getLogger(__name__)


def bound_socket(host: str, port: int) -> socket.socket:
    """A TCP socket bound to an address. Raises OSError saying which address cannot be had, and why."""
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)
        # Of the two addresses of localhost, the one that clients try first or fall back on.
        family, kind, protocol, _, address = min(found, key=lambda each: each[0] != socket.AF_INET)
        bound = socket.socket(family, kind, protocol)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
            bound.listen(1)  # only now does the system say whether somebody listens there already
        except BaseException:
            bound.close()
            raise
    except OSError as error:
        raise OSError(f"cannot listen on port {port} of {host}: {error.strerror or error}") from None
    return bound


def most_connections(config: ServerConfig) -> int | None:
    """None: any number."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    possible = None if files == resource.RLIM_INFINITY else max(1, files - OTHER_FILES)
    return possible if config.max_connections is None else config.max_connections


def serve(
    config: ServerConfig,
    build: Callable[[], EngineParts],
    bound: socket.socket,
    *,
    announce: Callable[[str], None],
    exit_with_stdin: bool = False,
) -> int:
    """Serves until a signal, the end of standard input (if `exit_with_stdin`), or the engine's death.

    announce: is told the server's URL as soon as requests are answered.
    Returns the exit status: 0, or 1 when the engine has died. Raises what `build` raises.
    """
    sys.setswitchinterval(SWITCH_INTERVAL)

    async def main() -> int:
        state = ServerState(config, build)
        settling: list[asyncio.Task[None]] = []
        state.on_engine(lambda engine: settling.append(asyncio.create_task(settle(state, engine))))
        stop = asyncio.Event()
        with _signals(lambda: on_signal(state, stop)):
            if exit_with_stdin:
                _watch_stdin(asyncio.get_running_loop(), stop)
            try:
                return await run(state, bound, stop, announce)
            finally:
                for task in settling:
                    task.cancel()
                await asyncio.gather(*settling, return_exceptions=True)

    loop_factory = uvicorn.Config("", log_config=None).get_loop_factory()
    loop = loop_factory() if loop_factory else asyncio.new_event_loop()
    try:
        return loop.run_until_complete(main())
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


async def settle(state: ServerState, engine: AsyncEngine) -> None:
    """What a start leaves for the first pause: the template engine, for which the first chat would wait.

    To import it takes 0.3 s, and as much from a step beside it: each op of the step waits for Python's lock.
    """
    await state.pause(SETTLE_PAUSE, SETTLE_PATIENCE)
    with uncollected(), contextlib.suppress(ValueError):  # there are models without a template
        await asyncio.to_thread(engine.tokenizer.encode_chat, [{"role": "user", "content": ""}])


async def run(state: ServerState, bound: socket.socket, stop: asyncio.Event, announce: Callable[[str], None]) -> int:
    """Serves until `stop` is set or the engine has died for good; then ends in order. Returns the exit status."""
    await state.start()
    try:
        server = _Server(
            uvicorn.Config(
                create_app(state),
                http=functools.partial(  # type: ignore[arg-type]
                    HttpProtocol,
                    max_connections=most_connections(state.config),
                    receive_timeout=state.config.receive_timeout,
                ),
                ssl_certfile=state.config.ssl_certfile,
                ssl_keyfile=state.config.ssl_keyfile,
                ws="websockets-sansio",
                ws_max_size=state.config.max_websocket_message_size,
                ws_per_message_deflate=False,  # tokens are short, and deflating each costs more than it saves
                lifespan="off",
                log_config=None,
                access_log=state.config.access_log,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=CLOSE_SECONDS,
            )
        )
        serving = asyncio.create_task(server.serve([bound]))
        while not server.started and not serving.done():
            await asyncio.sleep(0.01)
        if server.started:
            announce(_url(bound, state.config.ssl_certfile is not None))
            await _first_of(stop.wait(), state.died.wait())
            # The engine's death has already told everybody who was waiting for it.
            await state.drain(0.0 if state.died.is_set() else state.config.shutdown_timeout)
        server.should_exit = True
        await serving
    finally:
        await state.close()
    return 1 if state.died.is_set() else 0


class _Server(uvicorn.Server):
    """Leaves signals to us: requests in flight have their time before the connections are closed."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def on_signal(state: ServerState, stop: asyncio.Event) -> None:
    """The first asks for an orderly end, the second for a quick one."""
    if stop.is_set():
        state.hurry = True
    stop.set()


@contextlib.contextmanager
def _signals(handler: Callable[[], None]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGINT, signal.SIGTERM)
    for number in numbers:
        loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


def _watch_stdin(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    """A parent that is gone, however it went, has closed our standard input."""

    def read() -> None:
        with contextlib.suppress(OSError, RuntimeError):  # the loop may be closed by now
            while os.read(0, 4096):
                pass
            loop.call_soon_threadsafe(stop.set)

    threading.Thread(target=read, name="cudaprefill-stdin", daemon=True).start()


async def _first_of(*waits: object) -> None:
    tasks = [asyncio.ensure_future(wait) for wait in waits]  # type: ignore[call-overload]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _url(bound: socket.socket, is_tls: bool) -> str:
    host, port = bound.getsockname()[:2]
    address = f"[{host}]" if ":" in host else host
    return f"{'https' if is_tls else 'http'}://{address}:{port}"
