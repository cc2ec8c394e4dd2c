"""Explanations of requests that a server has answered."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from cudaprefill.cli.main import main
from cudaprefill.client.errors import ServerError
from cudaprefill.client.telemetry import TelemetryConnection
from cudaprefill.protocol.account import Account
from tests.server.running import RunningServer, events


@pytest.fixture(scope="module")
def answered() -> Iterator[tuple[RunningServer, list[str]]]:
    """A server that has answered two prompts, and their ids."""
    with RunningServer(pace=0.002, num_blocks=256, budget=32) as server:
        with server.client() as client:
            bodies = [
                {"model": "letters", "prompt": [7] * 100 + [last], "max_tokens": 8, "ignore_eos": True}
                for last in (1, 2)
            ]
            ids = [client.post("/v1/completions", json=body).raise_for_status().json()["id"] for body in bodies]
        yield server, ids


Answered = tuple[RunningServer, list[str]]


def test_the_parts_add_up_to_the_ttft(answered: Answered) -> None:
    server, ids = answered
    with server.client() as client:
        account = client.get(f"/v1/requests/{ids[0]}/explain").raise_for_status().json()
    assert account["state"] == "finished"
    assert account["prompt_tokens"] == 101
    until_first_token = [part["duration"] for part in account["parts"] if part["kind"] not in ("delivering", "sending")]
    assert sum(until_first_token) == pytest.approx(account["ttft"], abs=1e-9)
    assert [part["num_tokens"] for part in account["parts"] if part["kind"] == "chunk"] == [32, 32, 32, 5]


def test_a_streamed_answer_has_a_part_for_the_way_to_the_client(answered: Answered) -> None:
    server, _ = answered
    body = {"model": "letters", "prompt": [8] * 20, "max_tokens": 8, "stream": True}
    with server.client() as client:
        with client.stream("POST", "/v1/completions", json=body) as answer:
            (request_id,) = {event["id"] for event in events(answer)}
        account = client.get(f"/v1/requests/{request_id}/explain").raise_for_status().json()
    assert [part["kind"] for part in account["parts"]][-2:] == ["delivering", "sending"]
    assert account["total"] > account["ttft"]


def test_the_text_tells_of_the_prefix_cache_and_of_late_tokens(answered: Answered) -> None:
    server, ids = answered
    with server.client() as client:
        text = client.get(f"/v1/requests/{ids[1]}/explain?format=text&itl_limit_ms=1").raise_for_status().text
    assert "prefix cache: 96 of 96 tokens that can be shared" in text
    assert "a token came later than 1.0 ms after the one before" in text


def test_telemetry_tells_the_same(answered: Answered) -> None:
    server, ids = answered

    async def ask() -> Account:
        async with TelemetryConnection(server.url) as telemetry:
            await anext(aiter(telemetry))
            for request_id, limit, named in (("nobody", 100.0, "'nobody'"), (ids[0], -1.0, "itl_limit_ms")):
                with pytest.raises(ServerError, match=named):
                    await telemetry.explain(request_id, itl_limit_ms=limit)
            return await telemetry.explain(ids[1], itl_limit_ms=1.0)

    with server.client() as client:
        account = client.get(f"/v1/requests/{ids[1]}/explain?itl_limit_ms=1").raise_for_status().json()
    assert asyncio.run(ask()).as_dict() == account
    assert account["num_late_tokens"] > 0


@pytest.mark.parametrize(
    ("path", "status", "named"),
    [
        ("nobody/explain", 404, "nobody"),
        ("nobody/explain?itl_limit_ms=0", 400, "itl_limit_ms"),
        ("nobody/explain?itl_limit_ms=soon", 400, "itl_limit_ms"),
        ("nobody/explain?format=xml", 400, "format"),
    ],
)
def test_what_cannot_be_explained_is_an_error(answered: Answered, path: str, status: int, named: str) -> None:
    server, _ = answered
    with server.client() as client:
        answer = client.get(f"/v1/requests/{path}")
    assert answer.status_code == status
    assert named in answer.json()["error"]["message"]


def test_the_command_prints_the_account(answered: Answered, capsys: pytest.CaptureFixture[str]) -> None:
    server, ids = answered
    assert main(["explain", ids[0], "--url", server.url]) == 0
    assert "first token after" in capsys.readouterr().out
    assert main(["explain", ids[0], "--url", server.url, "--json"]) == 0
    assert '"prompt_tokens": 101' in capsys.readouterr().out
    assert main(["explain", "nobody", "--url", server.url]) == 1
    assert "'nobody' is not among those that are remembered" in capsys.readouterr().err
    assert main(["explain", "nobody", "--url", "http://127.0.0.1:1"]) == 1
    assert "no server answers at http://127.0.0.1:1" in capsys.readouterr().err
