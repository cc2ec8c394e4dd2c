"""What the load generator sends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from cudaprefill_tui import load
from cudaprefill_tui.load import SCENARIOS, LoadGenerator, LoadPlan, LoadRequest, ScenarioName, preset, shared_document

PATIENCE = 30  # seconds


class Answers:
    """A server: each answer has two pieces, unless `fault` says otherwise."""

    def __init__(self, fault: Exception | None = None, *, holds: bool = False) -> None:
        self.requests: list[LoadRequest] = []
        self.open = self.most_open = 0
        self.fault = fault
        self.holds = holds

    def __call__(self, request: LoadRequest) -> AsyncIterator[object]:
        return self._answer(request)  # type: ignore[return-value]

    async def _answer(self, request: LoadRequest):  # type: ignore[no-untyped-def]
        self.requests.append(request)
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            await asyncio.sleep(0)
            if self.fault is not None:
                raise self.fault
            yield "a"
            while self.holds:
                await asyncio.sleep(0.01)
            yield "b"
        finally:
            self.open -= 1


def play(plan: LoadPlan, until: Callable[[LoadGenerator, Answers], bool], answers: Answers | None = None) -> Answers:
    """Plays a plan until a condition holds, then stops it."""
    server = answers or Answers()

    async def run() -> None:
        generator = LoadGenerator(server)  # type: ignore[arg-type]
        generator.start(plan)
        try:
            async with asyncio.timeout(PATIENCE) if hasattr(asyncio, "timeout") else _Forever():
                while not until(generator, server):
                    await asyncio.sleep(0)
        finally:
            await generator.stop()
        assert not generator.is_running
        assert generator.figures.running == 0

    asyncio.run(run())
    assert server.open == 0, "every request was closed"
    return server


class _Forever:
    async def __aenter__(self) -> None: ...

    async def __aexit__(self, *exception: object) -> None: ...


def fast(name: ScenarioName, **changes: int) -> LoadPlan:
    fields = {"users": 3, "document_words": 50, "max_tokens": 8, **changes}
    return LoadPlan(name, pause=0.0, **fields)


@pytest.mark.parametrize("scenario", [scenario.name for scenario in SCENARIOS])
def test_every_scenario_asks_again_and_again(scenario: ScenarioName) -> None:
    server = play(fast(scenario), lambda generator, _: generator.figures.finished >= 12)
    assert {request.max_tokens for request in server.requests} == {8}


def test_chat_users_share_no_prefix_beyond_the_first_words() -> None:
    server = play(fast("chat"), lambda _, server: len(server.requests) >= 20)
    prompts = [request.prompt for request in server.requests]
    assert len(set(prompts)) == len(prompts)
    assert all(len(prompt.split()) < 40 for prompt in prompts)


def test_a_long_document_comes_among_short_chats() -> None:
    def both(_: LoadGenerator, server: Answers) -> bool:
        lengths = [len(request.prompt.split()) for request in server.requests]
        return sum(length > 500 for length in lengths) >= 2 and sum(length < 40 for length in lengths) >= 2

    play(fast("document", document_words=600), both)


def test_readers_of_one_document_share_its_prefix_and_ask_different_things() -> None:
    plan = fast("prefix")
    server = play(plan, lambda _, server: len(server.requests) >= 10)
    assert all(request.prompt.startswith(shared_document(plan)) for request in server.requests)
    assert len({request.prompt for request in server.requests}) == len(server.requests)


def test_a_burst_is_all_users_at_once_and_the_next_waits_for_its_end() -> None:
    server = play(fast("bursts", users=7), lambda generator, _: generator.figures.finished >= 21)
    assert server.most_open == 7


def test_the_same_seed_asks_the_same() -> None:
    first, second = (
        [request.prompt for request in play(fast("prefix", users=1), lambda _, s: len(s.requests) >= 5).requests][:5]
        for _ in range(2)
    )
    assert first == second


def test_stopping_closes_requests_that_are_under_way() -> None:
    server = Answers(holds=True)
    play(fast("chat", users=4), lambda _, server: server.open == 4, server)


def test_a_server_that_refuses_is_told_of_and_not_hammered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "BACK_OFF_SECONDS", 3600.0)
    server = Answers(fault=ValueError("the queue is full"))

    def failed(generator: LoadGenerator, _: Answers) -> bool:
        return generator.figures.failed == 3 and generator.figures.last_error == "the queue is full"

    play(fast("chat"), failed, server)
    assert len(server.requests) == 3


def test_one_load_at_a_time_and_only_one_that_can_be_played() -> None:
    async def run() -> None:
        generator = LoadGenerator(Answers())  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=r"users must lie in 1 \.\. 512, got 0"):
            generator.start(LoadPlan(users=0))
        generator.start(fast("chat"))
        with pytest.raises(ValueError, match="a load is running"):
            generator.start(fast("chat"))
        await generator.stop()

    asyncio.run(run())


@pytest.mark.parametrize("scenario", [scenario.name for scenario in SCENARIOS])
def test_presets_can_be_played(scenario: ScenarioName) -> None:
    assert preset(scenario).checked().scenario == scenario
