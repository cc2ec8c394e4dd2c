"""The asyncio side of the engine, on the fake model: whatever becomes of a client, nothing of it stays."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from cudaprefill.async_engine import AsyncEngine
from cudaprefill.engine.factory import EngineParts
from cudaprefill.errors import EngineDeadError, SlowReaderError
from cudaprefill.protocol.telemetry import EngineSettings
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


def test_a_reader_that_is_too_slow_costs_its_own_request_alone() -> None:
    async def session(engine: AsyncEngine) -> None:
        slow, fast = [await engine.generate(PROMPT, ENDLESS) for _ in range(2)]
        deltas = slow.merged(1000)
        await anext(deltas)
        assert (await fast.wait()).outputs[0].finish_reason == "length"
        with pytest.raises(SlowReaderError, match="the limit is 1000"):
            await anext(deltas)

    serve(session)


def test_readers_of_merged_streams_that_are_cancelled_leave_nothing_behind() -> None:
    async def session(engine: AsyncEngine) -> None:
        async def read() -> None:
            async with await engine.generate(PROMPT, ENDLESS) as stream:
                async for _ in stream.merged():
                    await asyncio.sleep(0.001)

        tasks = [asyncio.create_task(read()) for _ in range(10)]
        for task in tasks:
            await asyncio.sleep(0.003)
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    serve(session, max_num_seqs=4)


def test_an_abort_by_id_says_whether_there_was_such_a_request() -> None:
    async def session(engine: AsyncEngine) -> None:
        stream = await engine.generate(PROMPT, ENDLESS, request_id="mine")
        await anext(stream)
        assert await engine.abort("mine") is True
        assert await engine.abort("mine") is False
        assert await engine.abort("nobody's") is False
        assert (await stream.wait()).outputs[0].finish_reason == "abort"

    serve(session)


def test_all_requests_can_be_aborted_wherever_they_are() -> None:
    async def session(engine: AsyncEngine) -> None:
        streams = [await engine.generate(PROMPT, ENDLESS) for _ in range(5)]
        await anext(streams[0])
        assert await engine.abort_all() == 5
        for stream in streams:
            assert (await stream.wait()).outputs[0].finish_reason == "abort"
        assert await engine.abort_all() == 0

    serve(session, max_num_seqs=2)


def test_aborts_that_nobody_waits_for_any_more_still_happen() -> None:
    async def session(engine: AsyncEngine) -> None:
        stream = await engine.generate(PROMPT, ENDLESS, request_id="mine")
        gate = threading.Event()
        engine._engine.call(lambda engine: gate.wait())
        abort = asyncio.create_task(engine.abort("mine"))
        await asyncio.sleep(0)
        abort.cancel()
        gate.set()
        assert (await stream.wait()).outputs[0].finish_reason == "abort"

    serve(session)


def test_a_stopped_engine_has_nothing_to_abort() -> None:
    async def main() -> None:
        parts = EngineParts(make_engine(), make_input_processor(), letters(), None)  # type: ignore[arg-type]
        engine = AsyncEngine(parts)
        await engine.close()
        assert (await engine.abort("r"), await engine.abort_all()) == (False, 0)
        with pytest.raises(EngineDeadError, match="closed"):
            await engine.change_settings(max_num_batched_tokens=32)

    asyncio.run(main())


def test_a_callers_id_never_stands_in_the_way_of_a_made_one() -> None:
    async def session(engine: AsyncEngine) -> None:
        first = await engine.generate(PROMPT, ENDLESS)
        made = first.output.request_id
        with pytest.raises(ValueError, match=f"'{made}' is in use"):
            await engine.generate(PROMPT, GREEDY, request_id=made)
        own = [await engine.generate(PROMPT, GREEDY, request_id=f"request-{number}") for number in range(5)]
        others = [await engine.generate(PROMPT, GREEDY) for _ in range(5)]
        for stream in own + others:
            assert (await stream.wait()).outputs[0].token_ids == expected(PROMPT)
        first.abort()

    serve(session)


def test_a_salt_keeps_prefixes_apart_and_is_given_once() -> None:
    async def session(engine: AsyncEngine) -> None:
        async def cached(**options: Any) -> int:
            metrics = (await (await engine.generate(list(range(1, 40)), GREEDY, **options)).wait()).metrics
            assert metrics is not None
            return metrics.num_cached_tokens

        assert await cached(cache_salt="x") == 0
        assert await cached(cache_salt="y") == 0
        assert await cached() == 0
        assert await cached(cache_salt="x") == 32
        with pytest.raises(ValueError, match="cache_salt is given twice"):
            await engine.generate({"prompt_token_ids": PROMPT, "cache_salt": "x"}, GREEDY, cache_salt="y")

    serve(session)


def test_the_wait_counts_from_the_arrival_that_the_caller_names() -> None:
    async def session(engine: AsyncEngine) -> None:
        now = time.monotonic()
        metrics = (await (await engine.generate(PROMPT, GREEDY, arrival_time=now - 100.0)).wait()).metrics
        assert metrics is not None
        assert metrics.ttft is not None
        assert metrics.ttft > 100.0

    serve(session)


def test_a_step_that_hangs_shows() -> None:
    async def session(engine: AsyncEngine) -> None:
        assert engine.stuck_for() == 0.0
        gate = threading.Event()
        runner = engine._engine._engine.model_runner
        run = runner.run

        def hang(batch: Any) -> Any:
            gate.wait()
            return run(batch)

        runner.run = hang  # type: ignore[method-assign]
        stream = await engine.generate(PROMPT, GREEDY)
        while engine.stuck_for() == 0.0:
            await asyncio.sleep(0)
        first = engine.stuck_for()
        await asyncio.sleep(0.01)
        assert engine.stuck_for() > first
        gate.set()
        await stream.wait()
        await engine.call(lambda engine: None)
        assert engine.stuck_for() == 0.0

    serve(session)


def test_settings_change_between_two_steps_and_outputs_do_not() -> None:
    async def session(engine: AsyncEngine) -> None:
        assert engine.settings == EngineSettings(
            max_num_batched_tokens=64, long_prefill_token_threshold=0, itl_target_ms=None
        )
        prompt = [number % 49 + 1 for number in range(300)]
        streams = []
        for budget in (16, 1000, 40):
            streams.append(await engine.generate(prompt, GREEDY))
            await anext(streams[-1])
            settings = await engine.change_settings(max_num_batched_tokens=budget)
            assert engine.settings == settings
            assert settings.max_num_batched_tokens == budget
        for stream in streams:
            assert (await stream.wait()).outputs[0].token_ids == expected(prompt)
        assert (await engine.change_settings(itl_target_ms=25.5, long_prefill_token_threshold=8)).itl_target_ms == 25.5
        assert await engine.change_settings(itl_target_ms=0) == EngineSettings(
            max_num_batched_tokens=40, long_prefill_token_threshold=8, itl_target_ms=None
        )

    serve(session)


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({"max_num_batched_tokens": 15}, r"max_num_batched_tokens \(15\) .* max_num_seqs \(16\)"),
        ({"max_num_batched_tokens": 0}, "max_num_batched_tokens must be at least 1, got 0"),
        ({"max_num_batched_tokens": 2**20 + 1}, "max_num_batched_tokens must be at most 1048576, got 1048577"),
        ({"max_num_batched_tokens": 100}, "max_num_batched_tokens must be at most 64, .*, got 100"),
        ({"max_num_batched_tokens": True}, "max_num_batched_tokens must be an integer, got True"),
        ({"long_prefill_token_threshold": -1}, "long_prefill_token_threshold must be at least 0, got -1"),
        ({"long_prefill_token_threshold": 1.5}, "long_prefill_token_threshold must be an integer, got 1.5"),
        ({"itl_target_ms": -1.0}, "itl_target_ms must be a number of milliseconds, .*, got -1.0"),
        ({"itl_target_ms": float("nan")}, "itl_target_ms must be .*, got nan"),
        ({"itl_target_ms": float("inf")}, "itl_target_ms must be .*, got inf"),
        ({"itl_target_ms": "20"}, "itl_target_ms must be .*, got '20'"),
    ],
)
def test_a_wrong_setting_is_named_and_nothing_changes(changes: dict[str, Any], wrong: str) -> None:
    async def session(engine: AsyncEngine) -> None:
        before = engine.settings
        with pytest.raises(ValueError, match=wrong):
            await engine.change_settings(**{"long_prefill_token_threshold": 7, **changes})
        assert engine.settings == before

    serve(session, token_budget_limit=64)
