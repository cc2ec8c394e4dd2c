"""Thousands of requests from clients of every kind at once: whoever leaves however, nothing stays behind."""

from __future__ import annotations

import asyncio
import gc
import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect

from tests.server.chat_server import TERMINAL, ChatServer
from tests.server.running import MODEL, PATIENCE
from tests.server.test_responses_fuzz import resident_bytes

NUM_CLIENTS = 32
# Kinds that are worth a connection of their own at every turn, and what each may come to.
Visit = Callable[["Visitor"], Awaitable[str]]


class Visitor:
    """One client with a connection pool of its own."""

    def __init__(self, server: ChatServer, seed: int) -> None:
        self.random = random.Random(seed)
        self.http = httpx.AsyncClient(base_url=server.url, timeout=PATIENCE)
        self.socket_url = f"ws://127.0.0.1:{server.port}/v1/responses"
        self.telemetry_url = f"ws://127.0.0.1:{server.port}/v1/telemetry"

    def words(self) -> str:
        shared = "the same long beginning of a prompt " * self.random.choice((0, 0, 1, 4))
        return shared + "".join(self.random.choice("abcde fgh") for _ in range(self.random.randrange(1, 60)))

    def body(self, **fields: Any) -> dict[str, Any]:
        return {
            "model": MODEL,
            "prompt": self.words(),
            "max_tokens": self.random.randrange(1, 40),
            "temperature": self.random.choice((0, 1)),
            "n": self.random.choice((1, 1, 1, 2)),
            **fields,
        }


async def whole(visitor: Visitor) -> str:
    answer = await visitor.http.post("/v1/completions", json=visitor.body())
    assert answer.status_code == 200, answer.text
    return "whole"


async def streamed(visitor: Visitor) -> str:
    body = visitor.body(stream=True, messages=[{"role": "user", "content": visitor.words()}])
    del body["prompt"]
    async with visitor.http.stream("POST", "/v1/chat/completions", json=body) as answer:
        lines = [line async for line in answer.aiter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    return "streamed"


async def left_early(visitor: Visitor) -> str:
    body = visitor.body(stream=True, max_tokens=300, ignore_eos=True)
    async with visitor.http.stream("POST", "/v1/completions", json=body) as answer:
        wanted = visitor.random.randrange(6)
        async for _ in answer.aiter_lines():
            wanted -= 1
            if wanted <= 0:
                break
    return "left early"


async def cancelled(visitor: Visitor) -> str:
    post = asyncio.create_task(visitor.http.post("/v1/completions", json=visitor.body(max_tokens=300)))
    await asyncio.sleep(visitor.random.random() * 0.01)
    post.cancel()
    await asyncio.wait([post])
    return "cancelled"


async def slow(visitor: Visitor) -> str:
    async with visitor.http.stream("POST", "/v1/completions", json=visitor.body(stream=True)) as answer:
        async for _ in answer.aiter_bytes():
            await asyncio.sleep(0.01)
    return "slow"


async def wrong(visitor: Visitor) -> str:
    field, value = visitor.random.choice(
        [("temperature", "nan"), ("top_p", 7), ("max_tokens", -1), ("prompt", []), ("prompt", {}), ("model", "other")]
    )
    answer = await visitor.http.post("/v1/completions", json=visitor.body(**{field: value}))
    assert 400 <= answer.status_code < 500, answer.text
    assert answer.json()["error"]["message"]
    return "wrong"


async def broken(visitor: Visitor) -> str:
    content = json.dumps(visitor.body()).encode()
    answer = await visitor.http.post("/v1/completions", content=content[: visitor.random.randrange(len(content))])
    assert answer.status_code == 400
    return "broken"


async def conversation(visitor: Visitor) -> str:
    async with connect(visitor.socket_url) as socket:
        previous = None
        for _ in range(visitor.random.randrange(1, 4)):
            message = {"type": "response.create", "input": visitor.words(), "max_output_tokens": 8}
            await socket.send(json.dumps(message | ({"previous_response_id": previous} if previous else {})))
            while (event := json.loads(await socket.recv()))["type"] not in TERMINAL:
                pass
            if event["type"] == "error":  # the conversation has grown past the model
                return "conversation, full"
            previous = event["response"]["id"]
    return "conversation"


async def several(visitor: Visitor) -> str:
    """Several responses on one connection, some of which are cancelled, and the connection is cut off for the rest."""
    async with connect(visitor.socket_url) as socket:
        for stream in "abc":
            message = {"type": "response.create", "input": visitor.words(), "stream_id": stream, "ignore_eos": True}
            await socket.send(json.dumps(message | {"max_output_tokens": 200}))
        await socket.send(json.dumps({"type": "response.cancel", "stream_id": "b"}))
        for _ in range(visitor.random.randrange(30)):
            await socket.recv()
        if visitor.random.random() < 0.5:
            socket.transport.abort()
    return "several"


async def watcher(visitor: Visitor) -> str:
    async with connect(visitor.telemetry_url, max_size=None) as socket:
        await socket.send(json.dumps({"type": "telemetry.subscribe", "rate": 60, "owners": True}))
        for _ in range(visitor.random.randrange(1, 5)):
            await asyncio.wait_for(socket.recv(), PATIENCE)
    return "watcher"


VISITS: list[Visit] = [
    *[whole, streamed, left_early, cancelled, slow, wrong, broken, conversation, several],
    *[whole, streamed, left_early],
]


async def soak(server: ChatServer, num_visits: int, seed: int) -> Counter[str]:
    """`num_visits` from NUM_CLIENTS at once, while somebody watches."""
    seen: Counter[str] = Counter()
    left = iter(range(num_visits))

    async def client(number: int) -> None:
        visitor = Visitor(server, seed * 1000 + number)
        async with visitor.http:
            for _ in left:
                seen[await visitor.random.choice(VISITS)(visitor)] += 1

    async def watch() -> None:
        visitor = Visitor(server, seed)
        async with visitor.http:
            while True:
                seen[await watcher(visitor)] += 1

    watching = asyncio.create_task(watch())
    await asyncio.gather(*(client(number) for number in range(NUM_CLIENTS)))
    watching.cancel()
    await asyncio.wait([watching])
    return seen


@pytest.mark.slow
def test_five_thousand_visits_leave_nothing_behind() -> None:
    """The server's own checks at its end: no request, stream, task or thread, and all blocks free or cached."""
    with ChatServer(num_blocks=200, max_num_seqs=16, config={"max_stored_responses": 200}) as server:
        memory = []
        seen: Counter[str] = Counter()
        for part in range(5):
            seen += asyncio.run(soak(server, 1000, part))
            server.check_idle()
            gc.collect()
            memory.append(resident_bytes())
    assert sum(seen.values()) >= 5000
    assert {kind.__name__.replace("_", " ") for kind in VISITS} <= seen.keys()
    assert memory[-1] < memory[0] * 1.05, memory
