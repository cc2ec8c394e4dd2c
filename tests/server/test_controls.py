"""What whoever runs the server asks of it: settings, aborts, cache resets, health, its own description."""

from __future__ import annotations

import json
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

import cudaprefill
from cudaprefill.server.config import ServerConfig
from cudaprefill.server.openapi import PUBLIC_METHODS
from tests.server.asking import BOTH, COMPLETION_FIELDS, COMPLETIONS, ENDLESS, TEXT
from tests.server.running import MODEL, RunningServer


def test_health_and_version(server: RunningServer) -> None:
    with server.client() as client:
        assert (client.get("/health").status_code, client.get("/health").json()) == (200, {})
        assert client.get("/version").json() == {"version": cudaprefill.__version__}


def test_models_by_all_their_names() -> None:
    with RunningServer(config={"served_model_names": ("first", "team/second")}) as server, server.client() as client:
        models = client.get("/v1/models").json()
        assert models["object"] == "list"
        assert [model["id"] for model in models["data"]] == ["first", "team/second"]
        for model in models["data"]:
            assert client.get(f"/v1/models/{model['id']}").json() == model
            assert (model["object"], model["owned_by"], model["max_model_len"]) == ("model", "cudaprefill", 512)
            answer = client.post(COMPLETIONS, json={**COMPLETION_FIELDS, "model": model["id"]}).json()
            assert answer["model"] == model["id"]
        assert client.get("/v1/models/third").json()["error"]["code"] == "model_not_found"


def test_a_model_without_another_name_is_called_as_the_engine_calls_it() -> None:
    with RunningServer(config={"served_model_names": ()}) as server, server.client() as client:
        assert [model["id"] for model in client.get("/v1/models").json()["data"]] == [MODEL]


def test_the_engine_describes_itself_and_takes_new_settings(server: RunningServer) -> None:
    with server.client() as client:
        told = client.get("/v1/engine").json()
        assert told["engine"]["max_model_len"] == 512
        assert told["engine"]["num_blocks"] == 64
        assert told["engine"]["version"] == cudaprefill.__version__
        before = told["settings"]
        changed = client.post("/v1/engine", json={"max_num_batched_tokens": 32, "itl_target_ms": 50}).json()
        assert changed["engine"] == told["engine"]
        assert changed["settings"] == {**before, "max_num_batched_tokens": 32, "itl_target_ms": 50.0}
        assert client.get("/v1/engine").json() == changed
        back = client.post("/v1/engine", json={**before, "itl_target_ms": 0}).json()
        assert back == told


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_num_batched_tokens": 0}, "max_num_batched_tokens"),
        ({"max_num_batched_tokens": 2**20 + 1}, "max_num_batched_tokens"),
        ({"max_num_batched_tokens": "many"}, "max_num_batched_tokens"),
        ({"long_prefill_token_threshold": -1}, "long_prefill_token_threshold"),
        ({"itl_target_ms": -1.0}, "itl_target_ms"),
        ({"block_size": 32}, "block_size"),
    ],
)
def test_a_wrong_setting_is_named_and_changes_nothing(
    server: RunningServer, fields: dict[str, Any], param: str
) -> None:
    with server.client() as client:
        before = client.get("/v1/engine").json()
        response = client.post("/v1/engine", json={"long_prefill_token_threshold": 7, **fields})
        assert (response.status_code, response.json()["error"]["param"]) == (400, param)
        assert client.get("/v1/engine").json() == before


def test_a_slip_in_the_name_of_a_field_aborts_nobody() -> None:
    with RunningServer(pace=0.005) as server, server.client() as client, ThreadPoolExecutor() as threads:
        asked = threads.submit(server.client().post, COMPLETIONS, json={**COMPLETION_FIELDS, "max_tokens": 40})
        server.wait_until(lambda: server.runner.fake.steps > 3)
        refused = client.post("/abort_requests", json={"request_id": ["cmpl-0"]})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "request_id")
        assert asked.result().json()["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "fields"), BOTH)
def test_an_abort_ends_an_answer_with_what_there_is(path: str, fields: dict[str, Any], stream: bool) -> None:
    with RunningServer(pace=0.005) as server, server.client() as client, ThreadPoolExecutor() as threads:
        asked = threads.submit(server.client().post, path, json={**fields, **ENDLESS, "stream": stream})
        server.wait_until(lambda: server.runner.fake.steps > 3)
        (request_id,) = server.state.engine._streams
        assert client.post("/abort_requests", json={"request_ids": [request_id]}).json() == {"aborted": 1}
        response = asked.result()
        assert response.status_code == 200
        assert '"abort"' in response.text
        assert request_id in response.text
        assert client.post("/abort_requests", json={"request_ids": [request_id, "no"]}).json() == {"aborted": 0}


def test_an_abort_of_all(server: RunningServer) -> None:
    with server.client() as client, ThreadPoolExecutor() as threads:
        server.runner.gate.clear()
        asked = [threads.submit(server.client().post, COMPLETIONS, json=COMPLETION_FIELDS) for _ in range(3)]
        server.wait_until(lambda: len(server.state.engine._streams) == 3)
        aborted = threads.submit(client.post, "/abort_requests", json={})
        server.wait_until(lambda: server.state.in_flight == 4)
        server.runner.gate.set()
        assert aborted.result().json() == {"aborted": 3}
        assert {response.result().json()["choices"][0]["finish_reason"] for response in asked} == {"abort"}


def test_a_reset_forgets_cached_prefixes(server: RunningServer) -> None:
    def cached(client: httpx.Client) -> int:
        usage = client.post(COMPLETIONS, json={**COMPLETION_FIELDS, "prompt": TEXT * 10}).json()["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    with server.client() as client:
        assert (cached(client), cached(client)) == (0, 48)
        assert client.post("/reset_prefix_cache").json() == {}
        assert cached(client) == 0


def test_every_http_endpoint_is_described(server: RunningServer) -> None:
    with server.client() as client:
        description = client.get("/openapi.json").json()
        assert description["openapi"].startswith("3.1")
        assert {"/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/engine", "/metrics"} <= set(
            description["paths"]
        )
        for path, operations in description["paths"].items():
            for method in PUBLIC_METHODS:
                expected_status = 405 if method.lower() not in operations else None
                response = client.request(method, path.replace("{", "").replace("}", ""), content=b"{bad")
                assert (response.status_code == 405) == (expected_status == 405), (method, path)


def test_the_description_names_the_fields_and_their_types(server: RunningServer) -> None:
    with server.client() as client:
        description = client.get("/openapi.json").json()
    operation = description["paths"]["/v1/completions"]["post"]
    reference = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    schema = description
    for step in reference.removeprefix("#/").split("/"):
        schema = schema[step]
    assert schema["required"] == ["prompt"]
    assert schema["properties"]["temperature"]["anyOf"][0] == {"type": "number"}
    assert {"type": "string"} in schema["properties"]["prompt"]["anyOf"]
    for text in json.dumps(description).split('"$ref": "')[1:]:  # every reference leads somewhere
        place = description
        for step in text.split('"')[0].removeprefix("#/").split("/"):
            place = place[step]


def test_the_access_log_is_off_unless_asked_for_and_has_no_bodies(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ServerConfig().access_log is False
    monkeypatch.setattr(logging.getLogger("uvicorn.access"), "propagate", True)  # a server without it turns this off
    caplog.set_level("INFO", "uvicorn.access")
    for access_log in (True, False):
        caplog.clear()
        with RunningServer(config={"access_log": access_log}) as server, server.client() as client:
            client.post(COMPLETIONS, json=COMPLETION_FIELDS)
        lines = [record.getMessage() for record in caplog.records if record.name == "uvicorn.access"]
        assert len(set(lines)) == access_log
        assert all(COMPLETIONS in line and TEXT not in line for line in lines)
