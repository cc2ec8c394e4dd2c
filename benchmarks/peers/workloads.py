"""What every engine is asked to do, and what is measured of it.

Each measurement draws its token ids anew, so that no cache can know them; all engines get the same ones in one turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from benchmarks.peers.client import Client, Stream

Samples = dict[str, list[float]]  # by the name of a figure, in its unit


@dataclass(frozen=True)
class Sizes:
    """Tokens and requests of the workloads; `tiny` ones show that all of it runs."""

    vocab_size: int
    prefill: tuple[int, ...] = (400, 1600, 3200)
    decode_prompt: int = 32
    decode_tokens: int = 128
    batch: int = 16
    batch_prompt: int = 390
    batch_tokens: int = 64
    chats: int = 4
    chat_prompt: int = 64
    chat_warm_up: int = 16  # tokens of each chat before the long prompt arrives
    long_prompt: int = 3200
    max_chat_tokens: int = 4000
    prefix: int = 2400
    question: int = 32

    @classmethod
    def tiny(cls, vocab_size: int) -> Sizes:
        return cls(vocab_size, (16, 32), 8, 8, 3, 12, 4, 2, 8, 2, 64, 100, 48, 8)


@dataclass(frozen=True)
class Workload:
    """What takes one turn of each engine.

    turns: in each round.
    concurrent: it makes sense only for an engine that runs several requests at once.
    """

    name: str
    title: str
    run: Callable[[Client, Sizes, random.Random], Awaitable[Samples]]
    turns: int = 1
    concurrent: bool = False


def fresh_tokens(count: int, sizes: Sizes, draws: random.Random) -> list[int]:
    """Ordinary tokens: the special ones of the models at hand have the lowest ids."""
    return [draws.randrange(min(100, sizes.vocab_size // 2), sizes.vocab_size) for _ in range(count)]


async def prefill(client: Client, sizes: Sizes, draws: random.Random, *, length: int) -> Samples:
    """Nothing else runs: the time to the first token of one prompt, as tokens a second."""
    stream = await client.complete(fresh_tokens(length, sizes, draws), 1)
    return {f"prefill_{length}_tokens_s": [length / stream.ttft]}


async def decode(client: Client, sizes: Sizes, draws: random.Random) -> Samples:
    """One stream alone: the mean gap between its tokens."""
    stream = await client.complete(fresh_tokens(sizes.decode_prompt, sizes, draws), sizes.decode_tokens)
    return {"decode_itl_ms": [stream.mean_itl * 1e3]}


async def batch(client: Client, sizes: Sizes, draws: random.Random) -> Samples:
    """Many requests sent at once: the time until the last has ended."""
    prompts = [fresh_tokens(sizes.batch_prompt, sizes, draws) for _ in range(sizes.batch)]
    start = time.perf_counter()
    await asyncio.gather(*(client.complete(prompt, sizes.batch_tokens) for prompt in prompts))
    return {"batch_wall_s": [time.perf_counter() - start]}


async def chats(client: Client, sizes: Sizes, draws: random.Random) -> Samples:
    """Chats stream when a long prompt arrives: their gaps until its first token, and its time to that token."""
    streams = [Stream() for _ in range(sizes.chats)]
    prompts = [fresh_tokens(sizes.chat_prompt, sizes, draws) for _ in streams]
    long_prompt = fresh_tokens(sizes.long_prompt, sizes, draws)
    tasks = [
        asyncio.create_task(client.complete(prompt, sizes.max_chat_tokens, stream))
        for prompt, stream in zip(prompts, streams, strict=True)
    ]
    try:
        while any(stream.num_tokens < sizes.chat_warm_up for stream in streams):
            await asyncio.sleep(0.01)
            for task in tasks:
                if task.done():
                    task.result()  # raises why it ended so early
        newcomer = await client.complete(long_prompt, 1)
        while any(
            stream.events[-1][0] < newcomer.first and not task.done()
            for stream, task in zip(streams, tasks, strict=True)
        ):
            await asyncio.sleep(0.01)  # the gap that the first token fell into is not over yet
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    for task in tasks:
        with contextlib.suppress(asyncio.CancelledError):
            task.result()
    await asyncio.sleep(0.2)  # what the cancelled requests leave to be done
    gaps = [gap * 1e3 for stream in streams for gap in stream.gaps(newcomer.sent, newcomer.first)]
    return {"chats_itl_ms": gaps, "chats_long_ttft_s": [newcomer.ttft]}


async def prefix(client: Client, sizes: Sizes, draws: random.Random) -> Samples:
    """Two questions behind one long text: the time to the first token of the first, and of the second."""
    text = fresh_tokens(sizes.prefix, sizes, draws)
    questions = [fresh_tokens(sizes.question, sizes, draws) for _ in range(2)]
    cold, hit = [(await client.complete(text + question, 1)).ttft for question in questions]
    return {"prefix_cold_s": [cold], "prefix_hit_s": [hit]}


def workloads(sizes: Sizes) -> list[Workload]:
    """In the order in which a round takes them."""
    return [
        *(
            Workload("prefill", f"prefill of {length:,}", partial(prefill, length=length), turns=3)
            for length in sizes.prefill
        ),
        Workload("decode", "decode", decode),
        Workload("batch", "batch", batch),
        Workload("chats", "chats", chats, concurrent=True),
        Workload("prefix", "prefix", prefix),
    ]


NAMES = list(dict.fromkeys(workload.name for workload in workloads(Sizes(1))))
