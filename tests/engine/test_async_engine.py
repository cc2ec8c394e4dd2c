"""The asyncio side of the engine, on the fake model: whatever becomes of a client, nothing of it stays."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from cudaprefill.async_engine import AsyncEngine
from cudaprefill.engine.factory import EngineParts
from cudaprefill.errors import EngineDeadError
from cudaprefill.sampling_params import SamplingParams
from tests.engine.harness import GREEDY, expected, letters, make_engine, make_input_processor, pool_is_idle

PROMPT = [7, 3, 9, 4, 11, 5]
ENDLESS = SamplingParams(temperature=0, max_tokens=500, ignore_eos=True)


def serve(session: Callable[[AsyncEngine], Awaitable[None]], **settings: Any) -> None:
    """Runs `session` on an engine of its own and checks that it leaves nothing behind."""

    async def main() -> None:
        parts = EngineParts(make_engine(**settings), make_input_processor(), letters(), None)  # type: ignore[arg-type]
        async with AsyncEngine(parts) as engine:
            await session(engine)
            while await asyncio.wrap_future(engine._engine.call(lambda engine: engine.has_work())):
                await asyncio.sleep(0)
            assert await asyncio.wrap_future(engine._engine.call(pool_is_idle))
            assert engine._engine._mailboxes == {}
            assert engine._streams == {}

    asyncio.run(main())


def test_requests_that_end_leave_nothing_behind() -> None:
    async def session(engine: AsyncEngine) -> None:
        streams = [await engine.generate(PROMPT, GREEDY) for _ in range(20)]
        for output in await asyncio.gather(*(stream.wait() for stream in streams)):
            assert output.outputs[0].token_ids == expected(PROMPT)

    serve(session)


def test_cancelled_tasks_abort_their_requests_wherever_these_are() -> None:
    async def session(engine: AsyncEngine) -> None:
        async def ask() -> None:
            await (await engine.generate(PROMPT, ENDLESS)).wait()

        tasks = []
        for number in range(60):
            tasks.append(asyncio.create_task(ask()))
            if number % 3 == 0:
                await asyncio.sleep(0.001 * (number % 7))
            tasks[number // 2].cancel()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    serve(session, max_num_seqs=4)


def test_a_request_that_the_engine_refuses_leaves_nothing_behind() -> None:
    async def session(engine: AsyncEngine) -> None:
        stream = await engine.generate([1] * 100, GREEDY)
        with pytest.raises(ValueError, match="100 tokens, but the KV cache holds 64"):
            await stream.wait()

    serve(session, num_blocks=4)


def test_a_closed_engine_takes_no_request_and_keeps_none() -> None:
    async def main() -> None:
        parts = EngineParts(make_engine(), make_input_processor(), letters(), None)  # type: ignore[arg-type]
        engine = AsyncEngine(parts)
        stream = await engine.generate(PROMPT, ENDLESS)
        await engine.close()
        with pytest.raises(EngineDeadError, match="closed"):
            await stream.wait()
        with pytest.raises(EngineDeadError, match="closed"):
            await engine.generate(PROMPT, GREEDY)
        assert engine._streams == {}

    asyncio.run(main())


def test_the_more_urgent_request_leaves_the_queue_first() -> None:
    async def session(engine: AsyncEngine) -> None:
        gate = threading.Event()
        engine._engine.call(lambda engine: gate.wait())
        streams = [await engine.generate(PROMPT, GREEDY, priority=priority) for priority in (1, 0, -1)]
        gate.set()
        outputs = await asyncio.gather(*(stream.wait() for stream in streams))
        firsts = [output.metrics.first_token_time for output in outputs if output.metrics]
        assert firsts == sorted(firsts, reverse=True)

    serve(session, max_num_seqs=1)


def test_an_event_loop_that_ends_without_closing_the_engine_costs_its_own_requests_alone() -> None:
    async def start() -> AsyncEngine:
        parts = EngineParts(make_engine(), make_input_processor(), letters(), None)  # type: ignore[arg-type]
        engine = AsyncEngine(parts)
        await anext(await engine.generate(PROMPT, ENDLESS))
        return engine

    loop = asyncio.new_event_loop()
    engine = loop.run_until_complete(start())
    loop.close()
    while engine._engine.call(lambda engine: engine.has_work()).result():
        pass
    assert engine._engine.call(pool_is_idle).result()
    assert engine._engine._mailboxes == {}
    engine._engine.close()
