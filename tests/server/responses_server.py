"""A server on the fake model over real sockets, in a thread of its own, for tests of `/v1/responses` and its clients."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from tokenizers import AddedToken, decoders, models
from tokenizers import Tokenizer as Backend

from cudaprefill.engine.batch import Batch
from cudaprefill.engine.engine import Engine
from cudaprefill.engine.factory import EngineInfo, EngineParts
from cudaprefill.engine.input_processor import InputProcessor
from cudaprefill.engine.scheduler import Scheduler
from cudaprefill.engine.scheduler_config import SchedulerConfig
from cudaprefill.server.config import ServerConfig
from cudaprefill.server.run import bound_socket, run
from cudaprefill.server.state import ServerState
from cudaprefill.text.tokenizer import Tokenizer
from cudaprefill.text.tokenizer_files import TokenizerFiles
from tests.engine.harness import FakeRunner, pool_is_idle

Result = TypeVar("Result")

VOCAB_SIZE = 50
MAX_MODEL_LEN = 512
BLOCK_SIZE = 16
END, USER, ASSISTANT, SYSTEM = "<end>", "<user>", "<assistant>", "<system>"
CHAT_TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}<end>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
LETTERS = "abcdefghijklmnopqrstuvwxyz "


def chat_tokenizer() -> Tokenizer:
    """Control tokens around messages, letters, and pairs of letters: a text has many spellings, of which one is usual.

    So what the fake model "says" is hardly ever what the tokenizer would make of its text.
    """
    special = [END, USER, ASSISTANT, SYSTEM]
    merges = [(first, second) for first in "abcde" for second in "abcd"][: VOCAB_SIZE - len(special) - len(LETTERS)]
    tokens = [*special, *LETTERS, *(first + second for first, second in merges)]
    backend = Backend(models.BPE(vocab={token: number for number, token in enumerate(tokens)}, merges=merges))
    backend.add_special_tokens([AddedToken(token, normalized=False) for token in special])
    backend.decoder = decoders.Fuse()
    return Tokenizer(TokenizerFiles(backend.to_str(), {"eos_token": END}, CHAT_TEMPLATE))


class GatedRunner(FakeRunner):
    """Runs the fake model; `hold` makes each step wait until it is allowed."""

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks, BLOCK_SIZE)
        self._allowed = threading.Semaphore(0)
        self._held = False

    def run(self, batch: Batch) -> torch.Tensor:
        if self._held:
            self._allowed.acquire()
        return super().run(batch)

    def hold(self) -> None:
        self._held = True

    def allow(self, steps: int) -> None:
        self._allowed.release(steps)

    def release(self) -> None:
        self._held = False
        self._allowed.release(10_000)


@dataclass
class FakeServer:
    """A server that runs. `engine(function)` runs function(engine) between two steps and returns what it does."""

    url: str
    port: int
    state: ServerState
    runner: GatedRunner
    tokenizer: Tokenizer
    loop: asyncio.AbstractEventLoop
    stop: Callable[[], None] = field(repr=False)

    def engine(self, function: Callable[[Engine], Result]) -> Result:
        async def call() -> Any:
            return await self.state.engine.call(function)

        result: Result = asyncio.run_coroutine_threadsafe(call(), self.loop).result(30)
        return result

    def wait_until_idle(self) -> None:
        """Until no request is left; fails when one stays, or when a block does."""
        for _ in range(3000):
            if not self.engine(lambda engine: engine.has_work()):
                break
            threading.Event().wait(0.01)
        assert not self.engine(lambda engine: engine.has_work())
        assert self.engine(pool_is_idle)


@contextlib.contextmanager
def fake_server(
    *,
    port: int = 0,
    tokenizer: Tokenizer | None = None,
    num_blocks: int = 256,
    engine_settings: dict[str, Any] | None = None,
    **settings: Any,
) -> Iterator[FakeServer]:
    """settings: of ServerConfig; engine_settings: of SchedulerConfig."""
    tokenizer = chat_tokenizer() if tokenizer is None else tokenizer
    runner = GatedRunner(num_blocks)
    limits = {
        "num_blocks": num_blocks,
        "block_size": BLOCK_SIZE,
        "max_model_len": MAX_MODEL_LEN,
        "max_num_batched_tokens": 128,
        "max_num_seqs": 16,
    } | (engine_settings or {})
    config = SchedulerConfig(**limits)
    info = EngineInfo(
        "fake", "fake", 0, "float32", "cpu", "none", 1, MAX_MODEL_LEN, BLOCK_SIZE, num_blocks, 0, 128, 16, True
    )

    def build() -> EngineParts:
        engine = Engine(Scheduler(config), runner, tokenizer, torch.device("cpu"))  # type: ignore[arg-type]
        return EngineParts(engine, InputProcessor(tokenizer, (0,), VOCAB_SIZE, config), tokenizer, info)

    ready: Future[tuple[str, ServerState, asyncio.AbstractEventLoop, asyncio.Event]] = Future()
    bound = bound_socket("127.0.0.1", port)

    async def main() -> None:
        state, stop = ServerState(ServerConfig(shutdown_timeout=0.0, **settings), build), asyncio.Event()
        loop = asyncio.get_running_loop()
        try:
            await run(state, bound, stop, lambda url: ready.set_result((url, state, loop, stop)))
        except BaseException as error:
            if not ready.done():
                ready.set_exception(error)
            raise

    thread = threading.Thread(target=lambda: asyncio.run(main()), name="fake server")
    thread.start()
    url, state, loop, stop = ready.result(60)

    def end() -> None:
        runner.release()
        if thread.is_alive():
            loop.call_soon_threadsafe(stop.set)
            thread.join()

    try:
        yield FakeServer(url, bound_port(url), state, runner, tokenizer, loop, end)
    finally:
        end()


def bound_port(url: str) -> int:
    return int(url.rpartition(":")[2])


def free_port() -> int:
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
