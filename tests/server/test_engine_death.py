"""A step that fails ends all requests with an error each; then the engine comes back, or the server ends."""

from __future__ import annotations

import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest

from cudaprefill.engine.factory import EngineParts
from cudaprefill.garbage import uncollected
from tests.server.asking import ANSWER, COMPLETION_FIELDS, COMPLETIONS, ENDLESS
from tests.server.running import PATIENCE, RunningServer, events


def kill(server: RunningServer) -> None:
    server.runner.fake.fails = OSError("the GPU fell off the bus")


def test_all_clients_are_told_and_the_server_ends_with_an_error() -> None:
    with RunningServer(pace=0.005) as server, ThreadPoolExecutor() as threads:
        fields = {**COMPLETION_FIELDS, **ENDLESS}
        answers = [
            threads.submit(server.client().post, COMPLETIONS, json={**fields, "stream": stream})
            for stream in (True, True, False, False)
        ]
        server.wait_until(lambda: len(server.state.engine._streams) == 4 and server.runner.fake.steps > 3)
        kill(server)
        streamed, _, whole, _ = responses = [answer.result() for answer in answers]
        assert server.join() == 1
    told = [events(response)[-1] if response.status_code == 200 else response.json() for response in responses]
    assert {error["error"]["code"] for error in told} == {"engine_dead"}
    assert "the GPU fell off the bus" in told[0]["error"]["message"]
    assert (streamed.status_code, whole.status_code) == (200, 503)


def test_the_engine_is_started_anew_where_that_is_wanted() -> None:
    with RunningServer(config={"restart_engine": True}) as server, server.client() as client:
        kill(server)
        response = client.post(COMPLETIONS, json=COMPLETION_FIELDS)
        assert (response.status_code, response.json()["error"]["code"]) == (503, "engine_dead")
        assert int(response.headers["retry-after"]) > 0
        server.wait_until(lambda: client.get("/health").status_code == 200)
        assert server.builds == 2
        assert client.post(COMPLETIONS, json=COMPLETION_FIELDS).json()["choices"][0]["text"] == ANSWER
        assert "vllm:request_success_total{" in client.get("/metrics").text


def test_the_dead_engine_has_left_the_memory_when_the_next_one_is_built() -> None:
    with RunningServer(config={"restart_engine": True}) as server, server.client() as client:
        server.engine.circle = server.engine  # type: ignore[attr-defined]  # only the collector sees that it is dead
        with uncollected():
            pass
        assert gc.get_freeze_count() > 10_000
        client.post(COMPLETIONS, json=COMPLETION_FIELDS)
        dead = weakref.ref(server.engine)
        build, alive = server.state._build, []

        def look_and_build() -> EngineParts:
            alive.append(dead() is not None)
            return build()

        server.state._build = look_and_build
        kill(server)
        del server.engine, server.runner
        client.post(COMPLETIONS, json=COMPLETION_FIELDS)
        server.wait_until(lambda: client.get("/health").status_code == 200)
        assert alive == [False]


def test_while_the_engine_is_built_everything_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with RunningServer(config={"restart_engine": True}) as server, server.client() as client:
        gate = threading.Event()
        build = server.state._build
        server.state._build = lambda: gate.wait(PATIENCE) and build()  # type: ignore[assignment, return-value]
        kill(server)
        client.post(COMPLETIONS, json=COMPLETION_FIELDS)
        server.wait_until(lambda: server.state._engine is None)
        for path in ("/health", "/v1/models", "/v1/engine"):
            response = client.get(path)
            assert (response.status_code, response.json()["error"]["code"]) == (503, "engine_dead")
            assert "being started" in response.json()["error"]["message"]
        assert client.post(COMPLETIONS, json=COMPLETION_FIELDS).status_code == 503
        assert client.get("/metrics").status_code == 200
        gate.set()
        server.wait_until(lambda: client.get("/health").status_code == 200)


def test_an_engine_that_cannot_be_built_again_ends_the_server(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise OSError("the model is gone")

    with RunningServer(config={"restart_engine": True}) as server, server.client() as client:
        server.state._build = fail  # type: ignore[assignment]
        kill(server)
        client.post(COMPLETIONS, json=COMPLETION_FIELDS)
        assert server.join() == 1
    assert "the model is gone" in caplog.text


def test_a_stuck_engine_is_not_healthy() -> None:
    with RunningServer(config={"stuck_after": 0.05}) as server, server.client() as client:
        assert client.get("/health").json() == {}
        server.runner.gate.clear()
        connection = server.post_raw(COMPLETIONS, COMPLETION_FIELDS)
        server.wait_until(lambda: client.get("/health").status_code == 503)
        assert client.get("/health").json()["error"]["code"] == "engine_stuck"
        server.runner.gate.set()
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        connection.close()
        assert client.get("/health").status_code == 200
