"""What a server leaves for the first pause after its start."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from cudaprefill.server import run
from cudaprefill.server.config import ServerConfig
from cudaprefill.server.run import settle
from cudaprefill.server.state import ServerState


def engine_whose_template(fails: Exception | None, asked: threading.Event) -> Any:
    def encode_chat(messages: list[dict[str, str]]) -> list[int]:
        asked.set()
        if fails is not None:
            raise fails
        return []

    return SimpleNamespace(tokenizer=SimpleNamespace(encode_chat=encode_chat))


def idle_state() -> ServerState:
    def build() -> Any:
        raise AssertionError("nobody starts it")

    return ServerState(ServerConfig(), build)


@pytest.mark.parametrize("fails", [None, ValueError("the model has no chat template")])
def test_the_template_engine_is_imported_once_there_is_a_pause(
    fails: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "SETTLE_PAUSE", 0.0)
    asked = threading.Event()
    asyncio.run(settle(idle_state(), engine_whose_template(fails, asked)))
    assert asked.is_set()


def test_a_pause_begins_when_the_last_request_was_answered() -> None:
    async def wait_beside_a_request() -> None:
        state = idle_state()
        with state.admit():
            pause = asyncio.create_task(state.pause(0.0, patience=600.0))
            await asyncio.sleep(0.1)
            waits = not pause.done()
        await pause
        assert waits

    asyncio.run(wait_beside_a_request())


def test_without_any_pause_patience_ends() -> None:
    async def wait_beside_a_request() -> None:
        state = idle_state()
        with state.admit():
            await state.pause(600.0, patience=0.05)

    asyncio.run(wait_beside_a_request())
