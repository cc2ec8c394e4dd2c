"""Many subscribers of one engine: what they share, and what a slow one costs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from cudaprefill.async_engine import AsyncEngine
from cudaprefill.client.engine_view import EngineView
from cudaprefill.engine.factory import EngineParts
from cudaprefill.observe.metrics import Metrics
from cudaprefill.protocol.codec import decode
from cudaprefill.protocol.telemetry import SERVER_MESSAGES, TelemetrySnapshot, TelemetryUpdate
from cudaprefill.sampling_params import SamplingParams
from cudaprefill.server.telemetry.feed import MAX_REQUEST_CHANGES, MAX_STEPS, Wish
from cudaprefill.server.telemetry.hub import Encoded, Subscription, TelemetryHub
from tests.engine.harness import letters, make_engine, make_input_processor
from tests.server.running import PATIENCE, _info

ALL = Wish(frozenset({"step", "request", "blocks"}), owners=True)
FAST = 60.0


def make_parts(num_blocks: int) -> EngineParts:
    engine = make_engine(num_blocks=num_blocks)
    return EngineParts(engine, make_input_processor(), letters(), _info(engine))


@dataclass
class Watched:
    engine: AsyncEngine
    metrics: Metrics
    hub: TelemetryHub

    async def run(self, num_requests: int, max_tokens: int) -> None:
        """Eight at a time."""
        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        for first in range(0, num_requests, 8):
            streams = [
                await self.engine.generate([number % 20, 1 + number % 7], params)
                for number in range(first, min(first + 8, num_requests))
            ]
            await asyncio.gather(*(stream.wait() for stream in streams))


@contextlib.asynccontextmanager
async def watched(num_blocks: int = 64) -> AsyncIterator[Watched]:
    """As a server has it."""
    async with AsyncEngine(make_parts(num_blocks)) as engine:
        metrics = Metrics("letters", max_model_len=512, num_blocks=num_blocks)
        hub = TelemetryHub(metrics)
        engine.events.subscribe(metrics.on_events)
        hub.use(engine)
        yield Watched(engine, metrics, hub)


def read(encoded: Encoded) -> TelemetrySnapshot | TelemetryUpdate:
    message = decode(encoded.numbered(7), SERVER_MESSAGES)
    assert isinstance(message, (TelemetrySnapshot, TelemetryUpdate))
    assert message.sequence_number == 7
    return message


async def next_of(subscription: Subscription) -> Encoded:
    return await asyncio.wait_for(subscription.next(), PATIENCE)


def test_what_is_equal_for_all_is_encoded_once() -> None:
    async def go() -> None:
        async with watched() as server:
            subscriptions = [server.hub.subscribe(ALL, FAST) for _ in range(5)]
            snapshots = await asyncio.gather(*map(next_of, subscriptions))
            assert all(snapshot is snapshots[0] for snapshot in snapshots)
            # Begun together, they wait for the same tick.
            waiting = [asyncio.create_task(next_of(subscription)) for subscription in subscriptions]
            await server.run(1, 1)
            updates = await asyncio.gather(*waiting)
            assert all(isinstance(read(update), TelemetryUpdate) for update in updates)
            assert len(set(map(id, updates))) == 1

    asyncio.run(go())


def test_a_subscriber_that_asks_for_nothing_for_long_gets_the_whole_and_the_others_every_difference() -> None:
    async def go() -> None:
        async with watched() as server:
            slow, fast = server.hub.subscribe(ALL, FAST), server.hub.subscribe(ALL, FAST)
            views = {slow: EngineView(), fast: EngineView()}
            reasons = []

            async def follow() -> None:
                while True:
                    message = read(await fast.next())
                    views[fast].apply(message)
                    if isinstance(message, TelemetrySnapshot):
                        reasons.append(message.reason)

            following = asyncio.create_task(follow())
            views[slow].apply(read(await next_of(slow)))
            num_requests = MAX_REQUEST_CHANGES // 5 + 1
            await server.run(num_requests, 1)
            message = read(await next_of(slow))
            assert isinstance(message, TelemetrySnapshot)
            assert message.reason == "dropped"
            views[slow].apply(message)
            pool = await server.engine.call(lambda engine: engine.scheduler.pool_totals())
            while views[fast].pool != pool or max(views[fast].requests) < num_requests:
                await asyncio.sleep(0.01)
            following.cancel()
            assert reasons == ["subscribed"]
            assert views[slow].pool == pool
            assert views[slow].blocks.states == views[fast].blocks.states
            assert server.metrics.telemetry_dropped_snapshots == 1

    asyncio.run(go())


def test_steps_that_a_subscriber_was_too_slow_for_are_counted() -> None:
    async def go() -> None:
        async with watched() as server:
            slow = server.hub.subscribe(ALL, FAST)
            view = EngineView()
            view.apply(read(await next_of(slow)))
            num_steps = 0
            while num_steps <= MAX_STEPS + 100:
                await server.run(8, 400)
                num_steps = server.metrics.requests.step
            update = read(await next_of(slow))
            assert isinstance(update, TelemetryUpdate)
            view.apply(update)
            assert update.dropped_steps == num_steps - MAX_STEPS == server.metrics.telemetry_dropped_steps
            assert {record.output_tokens for record in view.requests.values()} == {400}

    asyncio.run(go())


def test_subscribers_at_different_rates_come_to_the_same_truth() -> None:
    async def go() -> None:
        async with watched(num_blocks=24) as server:
            rates = (3.0, 20.0, 60.0)
            views = [EngineView() for _ in rates]

            async def follow(view: EngineView, rate: float) -> None:
                subscription = server.hub.subscribe(ALL, rate)
                while True:
                    view.apply(read(await subscription.next()))

            tasks = [asyncio.create_task(follow(view, rate)) for view, rate in zip(views, rates, strict=True)]
            await server.run(40, 30)
            pool = await server.engine.call(lambda engine: engine.scheduler.pool_totals())
            for view in views:
                while view.pool != pool:
                    await asyncio.sleep(0.01)
            for task in tasks:
                task.cancel()
            states = await server.engine.call(lambda engine: engine.scheduler.pool.states().tolist())
            for view in views:
                assert view.blocks.states.decode() == "".join(".asc"[state] for state in states)
                assert [record.output_tokens for record in view.requests.values()] == [30] * 40
                assert view.blocks.owners == {}

    asyncio.run(go())


def test_who_wants_owners_first_gets_those_that_are_there_already() -> None:
    async def go() -> None:
        async with watched() as server:
            without = server.hub.subscribe(Wish(frozenset({"blocks"})), FAST)
            await next_of(without)
            stream = await server.engine.generate([1, 2, 3], SamplingParams(max_tokens=400, ignore_eos=True))
            async with stream:
                await anext(aiter(stream))
                snapshot = read(await next_of(server.hub.subscribe(ALL, FAST)))
                assert isinstance(snapshot, TelemetrySnapshot)
                assert list(snapshot.owners or {}) == ["1"]

    asyncio.run(go())


def test_the_end_of_the_last_subscription_is_the_end_of_listening_and_a_new_one_starts_afresh() -> None:
    async def go() -> None:
        async with watched() as server:
            one, two = server.hub.subscribe(ALL, FAST), server.hub.subscribe(ALL, FAST)
            await next_of(one)
            assert len(server.engine.events._listeners) == 2
            await server.hub.unsubscribe(one)
            assert len(server.engine.events._listeners) == 2
            await server.hub.unsubscribe(two)
            assert len(server.engine.events._listeners) == 1
            await server.run(3, 20)
            late = read(await next_of(server.hub.subscribe(ALL, FAST)))
            assert isinstance(late, TelemetrySnapshot)
            assert late.step == server.metrics.requests.step >= 20
            assert late.pool == await server.engine.call(lambda engine: engine.scheduler.pool_totals())

    asyncio.run(go())


def test_while_there_is_no_engine_a_subscriber_waits_and_the_next_one_is_told_as_new() -> None:
    async def go() -> None:
        async with watched() as server:
            subscription = server.hub.subscribe(ALL, FAST)
            await next_of(subscription)
            await server.engine.close()
            server.hub._on_events([])
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(subscription.next(), 0.2)
            async with AsyncEngine(make_parts(32)) as engine:
                server.metrics.engine_restarted()
                engine.events.subscribe(server.metrics.on_events)
                server.hub.use(engine)
                snapshot = read(await next_of(subscription))
                assert isinstance(snapshot, TelemetrySnapshot)
                assert (snapshot.reason, snapshot.engine.num_blocks) == ("restarted", 32)

    asyncio.run(go())
