"""Every error is JSON in OpenAI's shape, comes before any event, and touches nobody else."""

from __future__ import annotations

import concurrent.futures
import json
from typing import Any

import httpx
import pytest

from cudaprefill.sampling_params import SamplingParams
from tests.engine.harness import expected, text_of
from tests.server.asking import BOTH, CHAT, CHAT_FIELDS, COMPLETION_FIELDS, COMPLETIONS, PROMPT
from tests.server.running import RunningServer, events

SAMPLING_FIELDS = (
    "n",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "max_tokens",
    "min_tokens",
)


def error_of(response: httpx.Response, status: int, code: str | None = None, param: str | None = None) -> str:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["code"], error["param"]) == (code, param), error
    message: str = error["message"]
    return message


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/nothing", "/v1/chat/completions/", "/%00"])
def test_a_path_that_does_not_exist(server: RunningServer, path: str) -> None:
    with server.client() as client:
        error_of(client.get(path), 404)


@pytest.mark.parametrize(("method", "path"), [("GET", CHAT), ("DELETE", COMPLETIONS), ("POST", "/health")])
def test_a_method_that_a_path_does_not_take(server: RunningServer, method: str, path: str) -> None:
    with server.client() as client:
        response = client.request(method, path)
    assert method in error_of(response, 405)
    assert response.headers["allow"]


@pytest.mark.parametrize(("path", "fields"), BOTH)
def test_a_model_that_is_not_here(server: RunningServer, path: str, fields: dict[str, Any]) -> None:
    with server.client() as client:
        response = client.post(path, json={**fields, "model": "gpt-4"})
    assert "'gpt-4'" in error_of(response, 404, "model_not_found", "model")


BAD_BODIES = [
    b"",
    b"{bad",
    b"null",
    b"[1]",
    b'"x"',
    b"{}",
    b"\xff{}",
    b'{"type": 42}',
    b'{"prompt": 123, "messages": 123}',
    b'{"prompt": "\\ud800", "messages": [{"role": "user", "content": "\\ud800"}]}',
    b"[" * 200_000,
    b'{"a":' * 100_000,
    b'{"prompt": [1], "messages": [], "seed": ' + b"9" * 10_000 + b"}",
]


@pytest.mark.parametrize(("path", "fields"), BOTH)
def test_a_wrong_body_is_refused_before_any_event_and_a_running_stream_is_not_touched(
    path: str, fields: dict[str, Any]
) -> None:
    streamed = {**COMPLETION_FIELDS, "max_tokens": 40, "stream": True}
    with RunningServer(pace=0.002) as server, server.client() as client, server.client() as other:
        with other.stream("POST", COMPLETIONS, json=streamed) as stream:
            lines = stream.iter_lines()
            text = [next(lines)]
            for body in BAD_BODIES:
                response = client.post(path, content=body)
                error_of(response, 400, param=response.json()["error"]["param"])
            text += [line for line in lines if line]
        assert client.post(path, json=fields).status_code == 200
    assert text[-1] == "data: [DONE]"
    pieces = [json.loads(line.removeprefix("data: "))["choices"][0]["text"] for line in text[:-1] if line]
    assert "".join(pieces) == text_of(expected(PROMPT, SamplingParams(max_tokens=40, ignore_eos=True)))


@pytest.mark.parametrize(("path", "fields"), BOTH)
@pytest.mark.parametrize("name", SAMPLING_FIELDS)
def test_what_is_no_number_is_refused_with_the_name_of_its_field(
    server: RunningServer, path: str, fields: dict[str, Any], name: str
) -> None:
    with server.client() as client:
        for text in ("NaN", "Infinity", "-Infinity", "1e999", '"nan"', "true", "[]", "-1e9", "1" * 400):
            if name == "seed" and text == "-1e9":
                continue
            body = json.dumps({**fields, "stream": True, name: "<here>"}).replace('"<here>"', text)
            assert name in error_of(client.post(path, content=body), 400, param=name)


def test_a_queue_that_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    with RunningServer(max_num_seqs=1, max_num_queued_reqs=1) as server, server.client() as client:
        server.runner.gate.clear()
        connections = []
        for number in range(2):
            connections.append(server.post_raw(CHAT, CHAT_FIELDS))
            server.wait_until(lambda: server.state.in_flight == number + 1)  # noqa: B023
        server.wait_until(lambda: len(server.state.engine._streams) == 2)
        with concurrent.futures.ThreadPoolExecutor() as threads:
            refused = threads.submit(client.post, CHAT, json={**CHAT_FIELDS, "stream": True})
            batch = threads.submit(client.post, COMPLETIONS, json={**COMPLETION_FIELDS, "prompt": [[1], [2]]})
            server.wait_until(lambda: len(server.state.engine._streams) == 5)
            server.runner.gate.set()
            for response in (refused.result(), batch.result()):
                assert "max_num_queued_reqs is 1" in error_of(response, 429, "queue_full")
                assert response.json()["error"]["type"] == "rate_limit_error"
                assert int(response.headers["retry-after"]) > 0
        for connection in connections:
            assert connection.recv(65536).startswith(b"HTTP/1.1 200")
            connection.close()


def test_a_batch_that_no_retry_would_help_is_refused_with_both_numbers() -> None:
    with RunningServer(max_num_seqs=1, max_num_queued_reqs=2) as server, server.client() as client:
        fits = client.post(COMPLETIONS, json={**COMPLETION_FIELDS, "prompt": [[1], [2], [3]]})
        assert len(fits.json()["choices"]) == 3
        refused = client.post(COMPLETIONS, json={**COMPLETION_FIELDS, "prompt": [[1], [2], [3], [4]]})
        message = error_of(refused, 400, param="prompt")
        assert "4 prompts" in message
        assert "no more than 3" in message


def test_a_row_of_logits_that_is_not_finite_ends_its_own_request_alone(server: RunningServer) -> None:
    server.runner.fake.nan_contexts = {len(PROMPT) + 3}
    with server.client() as client:
        whole = client.post(COMPLETIONS, json=COMPLETION_FIELDS)
        streamed = client.post(COMPLETIONS, json={**COMPLETION_FIELDS, "stream": True})
        server.runner.fake.nan_contexts = set()
        assert client.post(COMPLETIONS, json=COMPLETION_FIELDS).status_code == 200
    assert "50 of 50 are NaN" in error_of(whole, 500, "internal_error")
    *_, error = events(streamed)
    assert error == whole.json()


def test_a_fault_of_the_server_is_told_without_its_details(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*arguments: object) -> None:
        raise KeyError("a secret")

    monkeypatch.setattr("cudaprefill.server.chat_completions.usage", fail)
    monkeypatch.setattr("cudaprefill.server.model_list._describe", fail)
    with server.client() as client:
        for response in (client.post(CHAT, json=CHAT_FIELDS), client.get("/v1/models")):
            assert "KeyError" in error_of(response, 500, "internal_error")
            assert "secret" not in response.text
    assert "a secret" in caplog.text


def test_prompts_are_not_logged(server: RunningServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(0)
    secret = "SECRETSECRET"
    with server.client() as client:
        client.post(CHAT, json={**CHAT_FIELDS, "messages": [{"role": "user", "content": secret}]})
        client.post(COMPLETIONS, json={**COMPLETION_FIELDS, "prompt": secret})
        client.post(COMPLETIONS, json={**COMPLETION_FIELDS, "prompt": [secret, 1]})
        client.post(CHAT, json={**CHAT_FIELDS, "messages": [{"role": "user", "content": [secret]}]})
        client.post("/tokenize", json={"prompt": secret})
    assert secret not in "".join(record.getMessage() for record in caplog.records if record.name != "httpcore")
