"""Turns of threads: asked for by the event loop, and not inherited by the thread that computes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest

from cudaprefill.engine.engine_thread import EngineThread
from cudaprefill.thread_turns import SHORT, set_turn, turn
from tests.engine.harness import make_engine
from tests.server.running import RunningServer

Result = TypeVar("Result")


def in_a_thread(function: Callable[[], Result]) -> Result:
    """So that no turn is left behind in the thread of the tests."""
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(function).result()


def turns_can_be_set() -> bool:
    return in_a_thread(lambda: set_turn(SHORT) and turn() == SHORT)


needs_turns = pytest.mark.skipif(not turns_can_be_set(), reason="this system does not let threads choose their turns")


@needs_turns
def test_a_turn_is_the_calling_threads_and_can_be_given_back() -> None:
    usual = turn()

    def change() -> list[float | None]:
        seen = []
        for wanted in (SHORT, None):
            assert set_turn(wanted)
            seen.append(turn())
        return seen

    assert in_a_thread(change) == [SHORT, usual]
    assert turn() == usual


def test_a_system_that_knows_no_turns_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "abacus")
    assert not set_turn(SHORT)
    assert turn() is None


@needs_turns
def test_an_engine_has_usual_turns_whoever_starts_it() -> None:
    usual = turn()

    def start_with_short_turns() -> float | None:
        set_turn(SHORT)
        thread = EngineThread(make_engine())
        try:
            return thread.call(lambda engine: turn()).result()
        finally:
            thread.close()

    assert in_a_thread(start_with_short_turns) == usual


@needs_turns
def test_the_event_loop_of_a_server_has_short_turns_and_its_engine_usual_ones() -> None:
    usual = turn()
    with RunningServer() as server:
        assert server.await_(turn_here()) == SHORT
        assert server.in_engine(lambda engine: turn()) == usual


async def turn_here() -> float | None:
    return turn()
