"""What listeners in an event loop are told of an engine in its thread."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pytest

from cudaprefill.async_engine import AsyncEngine
from cudaprefill.engine.engine import Engine
from cudaprefill.engine.factory import EngineParts
from cudaprefill.errors import EngineDeadError
from cudaprefill.observe.event_hub import Event
from cudaprefill.observe.events import RequestEvent, RequestEventKind, StepEvent
from cudaprefill.sampling_params import SamplingParams
from tests.engine.harness import GREEDY, FakeRunner, letters, make_engine, make_input_processor, make_request
from tests.engine.test_async_engine import ENDLESS, PROMPT, serve


class Told:
    """A listener that remembers."""

    def __init__(self) -> None:
        self.batches: list[list[Event]] = []

    def __call__(self, events: list[Event]) -> None:
        self.batches.append(events)

    @property
    def events(self) -> list[Event]:
        return [event for batch in self.batches for event in batch]

    def kinds(self, request_id: str) -> list[str]:
        return [e.kind.value for e in self.events if isinstance(e, RequestEvent) and e.request_id == request_id]

    @property
    def steps(self) -> list[int]:
        return [event.number for event in self.events if isinstance(event, StepEvent)]


def test_events_come_in_order_one_hand_over_a_step_and_before_their_tokens() -> None:
    async def session(engine: AsyncEngine) -> None:
        told = Told()
        engine.events.subscribe(told)
        async with await engine.generate(PROMPT, GREEDY, request_id="r") as stream:
            tokens = 0
            async for delta in stream:
                tokens += len(delta.token_ids)
                assert told.steps[-1] >= tokens
        assert told.kinds("r") == ["arrived", "queued", "scheduled", "chunk", "first_token", "finished"]
        assert told.steps == list(range(1, 9))
        with_step = [batch for batch in told.batches if any(isinstance(event, StepEvent) for event in batch)]
        assert all(isinstance(batch[-1], StepEvent) for batch in with_step)
        assert len(with_step) == 8

    serve(session)


def test_what_happens_without_a_step_is_told_as_well() -> None:
    async def session(engine: AsyncEngine) -> None:
        told = Told()
        engine.events.subscribe(told)

        def submit_and_abort(inside: Engine) -> None:
            inside.submit(make_request("r", PROMPT))
            inside.abort("r")

        await engine.call(submit_and_abort)
        assert told.kinds("r") == ["arrived", "queued", "finished"]

    serve(session)


def test_nothing_is_made_while_nobody_listens() -> None:
    async def session(engine: AsyncEngine) -> None:
        def ears(inside: Engine) -> tuple[object, object]:
            return inside.on_step, inside.scheduler.on_event

        assert await engine.call(ears) == (None, None)
        told = Told()
        stop = [engine.events.subscribe(told), engine.events.subscribe(Told())]
        assert None not in await engine.call(ears)
        stop[0]()
        stop[0]()
        assert None not in await engine.call(ears)
        stop[1]()
        assert await engine.call(ears) == (None, None)
        await (await engine.generate(PROMPT, GREEDY)).wait()
        assert told.events == []

    serve(session)


def test_a_listener_that_fails_is_dropped_and_harms_neither_the_others_nor_the_engine(
    caplog: pytest.LogCaptureFixture,
) -> None:
    calls = []

    def broken(events: list[Event]) -> None:
        calls.append(events)
        raise KeyError("a bug of the listener")

    async def session(engine: AsyncEngine) -> None:
        told = Told()
        engine.events.subscribe(broken)
        engine.events.subscribe(told)
        output = await (await engine.generate(PROMPT, GREEDY)).wait()
        assert output.outputs[0].finish_reason == "length"
        assert told.steps == list(range(1, 9))
        assert len(calls) == 1

    with caplog.at_level(logging.ERROR):
        serve(session)
    assert "a bug of the listener" in caplog.text


def test_a_snapshot_that_is_posted_lies_between_the_events_before_and_after_it() -> None:
    async def session(engine: AsyncEngine) -> None:
        told = Told()
        engine.events.subscribe(told)
        snapshots: list[tuple[int, int]] = []  # the last step in the engine's thread, and as told

        def take(inside: Engine) -> None:
            number = inside.scheduler.num_steps
            engine.events.post(lambda: snapshots.append((number, told.steps[-1] if told.steps else 0)))

        async with await engine.generate(PROMPT, SamplingParams(max_tokens=100, ignore_eos=True)) as stream:
            async for _ in stream:
                await engine.call(take)
        assert len(snapshots) == 100
        assert all(inside == outside for inside, outside in snapshots)

    serve(session)


@pytest.mark.parametrize("how", ["fails", "is closed"])
def test_an_engine_that_ends_tells_the_end_of_its_requests(how: str) -> None:
    async def main() -> None:
        inside = make_engine(max_num_seqs=1)
        engine = AsyncEngine(EngineParts(inside, make_input_processor(), letters(), None))  # type: ignore[arg-type]
        told = Told()
        engine.events.subscribe(told)
        streams = [await engine.generate(PROMPT, ENDLESS) for _ in range(2)]
        await anext(streams[0])
        if how == "fails":
            assert isinstance(inside.model_runner, FakeRunner)
            inside.model_runner.fails = OSError("the device fell off the bus")
        else:
            await engine.close()
        for stream in streams:
            with pytest.raises(EngineDeadError):
                await stream.wait()
        ends = [e for e in told.events if isinstance(e, RequestEvent) and e.kind is RequestEventKind.FINISHED]
        assert [event.reason for event in ends] == ["error", "error"]
        assert not inside.has_work()
        unsubscribe: Callable[[], None] = engine.events.subscribe(Told())
        unsubscribe()
        await engine.close()

    asyncio.run(main())
