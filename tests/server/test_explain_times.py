"""An account beside the clock of the client that waited: what it says must add up, and be what the client saw of it.

One clock tells both: server and clients are threads of this process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

from tests.server.chat_server import TERMINAL, ChatServer, Socket

GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True}
# Each letter past "e" is a token, so are "<user>", "<end>" and "<assistant>".
SHARED = "f" * 40


@dataclass(frozen=True)
class Seen:
    """By a client: seconds from before the request was sent."""

    request_id: str
    first_token: float
    end: float


def stream(server: ChatServer, path: str, body: dict[str, Any]) -> Seen:
    """Over HTTP: each endpoint's first event with a token."""
    start, first, request_id = time.monotonic(), 0.0, ""
    with server.client() as client, client.stream("POST", path, json={"stream": True, **GREEDY, **body}) as answer:
        for line in answer.iter_lines():
            if not first and ('"choices"' in line or "response.output_text.delta" in line):
                first = time.monotonic() - start
            if not request_id and '"id"' in line:
                request_id = line.partition('"id":')[2].split('"')[1]
    return Seen(request_id, first, time.monotonic() - start)


def respond(server: ChatServer, **body: Any) -> Seen:
    """Over a websocket that is open already."""
    with Socket(server) as socket:
        start = time.monotonic()
        socket.create(**GREEDY, **body)
        events = socket.until("response.output_text.delta")
        first = time.monotonic() - start
        socket.until(*TERMINAL)
        return Seen(events[0]["response"]["id"], first, time.monotonic() - start)


@pytest.fixture(scope="module")
def seen() -> Iterator[tuple[ChatServer, dict[str, Seen]]]:
    """Four requests that came during one step; a step has two tokens, and at most two requests."""
    with ChatServer(num_blocks=12, budget=2, max_num_seqs=2) as server, ThreadPoolExecutor() as threads:
        server.runner.gate.clear()
        asked: dict[str, Callable[[], Seen]] = {
            "decodes": lambda: stream(server, "/v1/completions", {"prompt": "h" * 8, "max_tokens": 140}),
            # A chat of 96 tokens, one a step: the first takes its blocks away before they are computed.
            "preempted": lambda: stream(
                server, "/v1/chat/completions", {"messages": [{"role": "user", "content": "g" * 93}], "max_tokens": 2}
            ),
            "queued": lambda: respond(server, input=SHARED, max_output_tokens=30),
            "hits": lambda: stream(server, "/v1/responses", {"input": SHARED, "max_output_tokens": 30}),
        }
        answers: dict[str, Future[Seen]] = {}
        for name, ask in asked.items():
            answers[name] = threads.submit(ask)
            server.wait_until(lambda: len(server.state.engine._streams) == len(answers))
        server.runner.gate.set()
        yield server, {name: answer.result() for name, answer in answers.items()}


def account_of(seen: tuple[ChatServer, dict[str, Seen]], name: str) -> tuple[dict[str, Any], Seen]:
    server, by_name = seen
    with server.client() as client:
        answer = client.get(f"/v1/requests/{by_name[name].request_id}/explain")
    return answer.raise_for_status().json(), by_name[name]


def kinds(account: dict[str, Any]) -> list[str]:
    """Of its parts, equal ones in a row counted as one."""
    all_kinds = [part["kind"] for part in account["parts"] if part["kind"] != "between steps"]
    return [kind for place, kind in enumerate(all_kinds) if place == 0 or all_kinds[place - 1] != kind]


@pytest.mark.parametrize("name", ["decodes", "preempted", "queued", "hits"])
def test_the_parts_follow_each_other_and_are_what_the_client_waited_for(
    seen: tuple[ChatServer, dict[str, Seen]], name: str
) -> None:
    account, client = account_of(seen, name)
    end = 0.0
    for part in account["parts"]:
        assert part["start"] == pytest.approx(end, abs=1e-9)
        assert part["duration"] > 0
        end += part["duration"]
    assert end == pytest.approx(account["total"], abs=1e-9)
    of_token = [part["duration"] for part in account["parts"] if part["kind"] not in ("delivering", "sending")]
    assert sum(of_token) == pytest.approx(account["ttft"], abs=1e-9)
    assert kinds(account)[0] == "tokenizing"
    assert kinds(account)[-2:] == ["delivering", "sending"]
    # The client cannot have seen the token before it was made, nor the end before the token was sent.
    assert account["ttft"] < client.first_token
    assert account["total"] < client.end


def test_each_wait_is_told_by_its_own_name(seen: tuple[ChatServer, dict[str, Seen]]) -> None:
    first, middle, last = ["tokenizing", "handing over"], ["queued", "chunk"], ["delivering", "sending"]
    assert kinds(account_of(seen, "decodes")[0]) == ["tokenizing", "handing over", "queued", "chunk", *last]
    preempted, _ = account_of(seen, "preempted")
    assert kinds(preempted) == [*first, *middle, "preempted", "chunk", *last]
    assert preempted["preemptions"] == 1
    assert len([part for part in preempted["parts"] if part["kind"] == "chunk"]) > 80
    for name in ("queued", "hits"):
        account, _ = account_of(seen, name)
        assert kinds(account)[:3] == [*first, "queued"]
        assert {part["waiting_for"].partition(":")[0] for part in account["parts"]} >= {"budget", "blocks"}
        assert any(preempted["id"] in part["behind"] for part in account["parts"])
    assert account_of(seen, "queued")[0]["prefix"]["hit_tokens"] == 0
    assert account_of(seen, "hits")[0]["prefix"]["hit_tokens"] == 32


def test_an_answer_at_once_was_not_sent_with_its_first_token(seen: tuple[ChatServer, dict[str, Seen]]) -> None:
    server, _ = seen
    with server.client() as client:
        answer = client.post("/v1/responses", json={"input": "a", "max_output_tokens": 3, **GREEDY})
        account = client.get(f"/v1/requests/{answer.raise_for_status().json()['id']}/explain").json()
    assert [part["kind"] for part in account["parts"]][-1] == "delivering"
