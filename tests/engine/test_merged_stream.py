"""A reader that is slow gets less often more, and a reader that is too slow is told so."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudaprefill.engine.output_delta import OutputDelta
from cudaprefill.engine.request_stream import AsyncRequestStream
from cudaprefill.errors import SlowReaderError
from cudaprefill.outputs import Logprob, RequestMetrics
from cudaprefill.sampling_params import SamplingParams
from tests.engine.harness import make_request

PROMPT = [7, 3, 9]


def run(session: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await session()

    asyncio.run(main())


def make_stream(n: int = 1) -> tuple[AsyncRequestStream, list[str]]:
    aborts: list[str] = []
    request = make_request("r", PROMPT, SamplingParams(n=n))
    return AsyncRequestStream(request, None, lambda: aborts.append("abort")), aborts


def token(index: int, token_id: int, **fields: Any) -> OutputDelta:
    return OutputDelta("r", index, [token_id], f"<{token_id}>", **fields)


def end(index: int, reason: str, last: bool, **fields: Any) -> OutputDelta:
    return OutputDelta("r", index, finish_reason=reason, request_finished=last, **fields)


@given(
    st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=40),
    st.permutations([0, 1, 2]),
    st.lists(st.booleans(), min_size=3, max_size=3),
)
def test_merged_deltas_add_up_to_the_same_output(
    arrivals: list[tuple[int, bool]], ends: list[int], read_between_ends: list[bool]
) -> None:
    """Whatever the reader misses, and whichever output ends last."""

    async def session() -> None:
        merged, plain = make_stream(3)[0], make_stream(3)[0]
        seen: list[OutputDelta] = []

        async def read_all(stream: AsyncRequestStream) -> None:
            while stream._mail:
                seen.append(await anext(stream))

        merged.merged(10**6)
        mail = [
            (token(index, number, logprobs=[{number: Logprob(-0.5, 1)}]), read)
            for number, (index, read) in enumerate(arrivals)
        ]
        mail += [
            (end(index, "length", last=index == ends[-1], stop_reason=index), read)
            for index, read in zip(ends, read_between_ends, strict=True)
        ]
        for delta, read in mail:
            plain.deliver(replace(delta, token_ids=list(delta.token_ids)))
            merged.deliver(delta)
            if read:
                await read_all(merged)
        async for delta in merged:
            seen.append(delta)
        async for _ in plain:
            pass
        assert merged.output == plain.output
        assert [delta.request_finished for delta in seen] == [False] * (len(seen) - 1) + [True]
        assert merged._pending_bytes == 0

    run(session)


def test_what_waits_of_an_output_comes_as_one_delta_with_its_first_metrics() -> None:
    async def session() -> None:
        stream, _ = make_stream()
        first, last = RequestMetrics(1.0), RequestMetrics(2.0)
        stream.deliver(token(0, 1, metrics=first))
        deltas = stream.merged()
        stream.deliver(token(0, 2))
        stream.deliver(end(0, "stop", last=True, stop_reason="x", metrics=last))
        (delta,) = [delta async for delta in deltas]
        assert (delta.token_ids, delta.text) == ([1, 2], "<1><2>")
        assert (delta.finish_reason, delta.stop_reason, delta.request_finished) == ("stop", "x", True)
        assert delta.metrics is first

    run(session)


def test_an_error_comes_after_what_was_sent_before_it() -> None:
    async def session() -> None:
        stream, _ = make_stream()
        deltas = stream.merged()
        stream.deliver(token(0, 1))
        stream.deliver(token(0, 2))
        stream.deliver(end(0, "error", last=True, error=OSError("no such luck")))
        assert (await anext(deltas)).token_ids == [1, 2]
        with pytest.raises(OSError, match="no such luck"):
            await anext(deltas)
        assert stream.output.finished

    run(session)


def test_a_reader_that_is_too_slow_loses_the_request_and_is_told_both_numbers() -> None:
    async def session() -> None:
        stream, aborts = make_stream()
        deltas = stream.merged(100)
        while not aborts:
            stream.deliver(token(0, 1))
        assert len(stream._mail) == 0
        stream.deliver(token(0, 2))
        stream.deliver(end(0, "abort", last=True))
        for _ in range(2):
            with pytest.raises(SlowReaderError, match=r"110 bytes .* 'r' .* limit is 100"):
                await anext(deltas)
        assert aborts == ["abort"]
        assert stream.output.finished

    run(session)


def test_what_waited_before_merging_began_counts() -> None:
    async def session() -> None:
        stream, aborts = make_stream()
        for number in range(50):
            stream.deliver(token(0, number))
        deltas = stream.merged(100)
        assert aborts == ["abort"]
        with pytest.raises(SlowReaderError):
            await anext(deltas)

    run(session)


def test_a_reader_that_keeps_up_is_never_too_slow() -> None:
    async def session() -> None:
        stream, aborts = make_stream()
        deltas = stream.merged(100)
        for number in range(1000):
            stream.deliver(token(0, number))
            assert (await anext(deltas)).token_ids == [number]
        assert aborts == []

    run(session)


def test_unread_deltas_take_little_more_memory_than_what_is_in_them() -> None:
    async def session() -> None:
        stream, _ = make_stream(2)
        deltas = stream.merged(10**6)
        for number in range(10_000):
            stream.deliver(token(number % 2, 1))
            assert len(stream._mail) < 300
        assert (await anext(deltas)).token_ids == [1] * 5000
        assert (await anext(deltas)).text == "<1>" * 5000
        assert stream._pending_bytes == 0

    run(session)
