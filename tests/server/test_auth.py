"""Who may use the server, over HTTP and websockets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from cudaprefill.server.config import ServerConfig
from tests.server.asking import CHAT, CHAT_FIELDS
from tests.server.running import RunningServer

KEYS = ("first-key", "zweiter-Schlüssel")


@pytest.fixture(scope="module")
def guarded() -> Iterator[RunningServer]:
    with RunningServer(config={"api_keys": KEYS}) as server:
        yield server


def bearer(key: str, scheme: str = "Bearer") -> dict[str, bytes]:
    return {"Authorization": f"{scheme} {key}".encode()}


def test_any_of_the_keys_opens_the_server(guarded: RunningServer) -> None:
    with guarded.client() as client:
        for key in KEYS:
            for scheme in ("Bearer", "bearer"):
                assert client.post(CHAT, json=CHAT_FIELDS, headers=bearer(key, scheme)).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": b""},
        {"Authorization": b"Bearer"},
        bearer("first-ke"),
        bearer("first-key-"),
        bearer("first-key", "Basic"),
        {"Authorization": b"first-key"},
        {"Authorization": b"Bearer \xff\xfe"},
        {"X-Api-Key": b"first-key"},
    ],
)
def test_nothing_else_does(guarded: RunningServer, headers: dict[str, bytes]) -> None:
    with guarded.client() as client:
        for method, path in (
            ("POST", CHAT),
            ("GET", "/v1/models"),
            ("GET", "/v1/engine"),
            ("POST", "/abort_requests"),
            ("POST", "/reset_prefix_cache"),
            ("POST", "/tokenize"),
            ("GET", "/v1/nothing"),
            ("GET", "/health/"),
            ("GET", "//v1/models"),
            ("GET", "/%76%31/models"),
        ):
            response = client.request(method, path, headers=headers)
            assert (response.status_code, response.json()["error"]["code"]) == (401, "invalid_api_key"), path
            assert response.json()["error"]["type"] == "authentication_error"
            assert response.headers["www-authenticate"] == "Bearer"


def test_probes_need_no_key(guarded: RunningServer) -> None:
    with guarded.client() as client:
        for path in ("/health", "/version", "/metrics", "/openapi.json"):
            assert client.get(path).status_code == 200


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/telemetry"])
def test_websockets_need_the_key_before_they_open(guarded: RunningServer, path: str) -> None:
    url = guarded.url.replace("http", "ws") + path
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        with pytest.raises(InvalidStatus) as refused, connect(url, additional_headers=headers):
            pass
        assert refused.value.response.status_code == 401
        assert b"invalid_api_key" in refused.value.response.body
    with connect(url, additional_headers={"Authorization": f"Bearer {KEYS[0]}"}):
        pass


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "localhost:8000"}, 200),
        ({"Host": "[::1]:8000"}, 200),
        ({"Host": "localhost:8000", "Origin": "http://localhost:8000"}, 200),
        ({"Origin": "https://example.com"}, 403),
        ({"Origin": "null"}, 403),
        ({"Host": "localhost:8000", "Origin": "http://localhost:9000"}, 403),
        ({"Host": "example.com"}, 403),
        ({"Host": "example.com:8000", "Origin": "http://example.com:8000"}, 403),
        ({"Host": "127.0.0.1.example.com"}, 403),
        ({"Host": "["}, 403),
        ({"Host": "[::1"}, 403),
        ({"Host": "localhost:8000", "Origin": "http://[localhost:8000"}, 403),
    ],
)
def test_without_a_key_pages_of_other_sites_are_kept_out(
    server: RunningServer, headers: dict[str, str], status: int
) -> None:
    with server.client() as client:
        response = client.post(CHAT, json=CHAT_FIELDS, headers=headers)
    assert response.status_code == status
    if status == 403:
        assert response.json()["error"]["code"] == "foreign_origin"


def test_without_a_key_websockets_of_other_sites_are_kept_out(server: RunningServer) -> None:
    url = server.url.replace("http", "ws") + "/v1/telemetry"
    for origin in ("https://example.com", "http://["):
        with pytest.raises(InvalidStatus) as refused, connect(url, origin=origin):  # type: ignore[arg-type]
            pass
        assert refused.value.response.status_code == 403


def test_with_a_key_any_site_that_knows_it_may_come(guarded: RunningServer) -> None:
    with guarded.client() as client:
        response = client.get("/v1/models", headers={**bearer(KEYS[0]), "Origin": b"https://example.com"})
    assert response.status_code == 200


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "[::1]", "localhost"])
def test_loopback_needs_no_key(host: str) -> None:
    assert ServerConfig(host=host).host == host


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "example.com", "127.0.0.1.example.com", ""])
def test_more_than_loopback_needs_a_key_or_a_plain_word(host: str) -> None:
    with pytest.raises(ValueError, match=r"--api-key.*--allow-unauthenticated"):
        ServerConfig(host=host)
    assert ServerConfig(host=host, api_keys=("key",)).host == host
    assert ServerConfig(host=host, allow_unauthenticated=True).host == host


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"port": 65536}, "port must be between 0 and 65535, got 65536"),
        ({"api_keys": ("good", "")}, "api_keys must not hold an empty string"),
        ({"max_body_size": 0}, "max_body_size must be at least 1, got 0"),
        ({"shutdown_timeout": -1.0}, "shutdown_timeout must be at least 0 seconds, got -1.0"),
        ({"shutdown_timeout": float("nan")}, "shutdown_timeout must be at least 0 seconds, got nan"),
        ({"stuck_after": 0.0}, "stuck_after must be more than 0 seconds, got 0.0"),
    ],
)
def test_a_wrong_setting_is_named_with_its_value(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        ServerConfig(**settings)
