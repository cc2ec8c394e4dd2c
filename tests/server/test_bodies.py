"""How much a client may send."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator

import pytest

from tests.server.asking import ANSWER, COMPLETION_FIELDS, COMPLETIONS
from tests.server.running import RunningServer

MIB = 2**20


def padded(size: int) -> bytes:
    """A good request of exactly `size` bytes."""
    body = json.dumps(COMPLETION_FIELDS).encode()
    return body + b" " * (size - len(body))


def chunks(body: bytes) -> Iterator[bytes]:
    """Sent without a length, so that only counting tells."""
    for start in range(0, len(body), 64 * 1024):
        yield body[start : start + 64 * 1024]


@pytest.mark.parametrize("size", [MIB - 1, MIB + 1, 8 * MIB])
def test_up_to_the_limit_a_body_is_read(server: RunningServer, size: int) -> None:
    with server.client() as client:
        for content in (padded(size), chunks(padded(size))):
            assert client.post(COMPLETIONS, content=content).json()["choices"][0]["text"] == ANSWER


def test_a_longer_body_is_refused_clearly_and_others_are_not_disturbed(server: RunningServer) -> None:
    with server.client() as client, server.client() as other:
        for content in (padded(8 * MIB + 1), chunks(padded(8 * MIB + 1)), padded(20 * MIB), chunks(padded(20 * MIB))):
            response = client.post(COMPLETIONS, content=content)
            error = response.json()["error"]
            assert (response.status_code, error["code"]) == (413, "body_too_large")
            assert str(8 * MIB) in error["message"]
            assert response.headers["connection"] == "close"
            assert other.post(COMPLETIONS, json=COMPLETION_FIELDS).status_code == 200


def test_an_announced_length_that_is_too_large_is_refused_before_anything_is_sent(server: RunningServer) -> None:
    for length in (8 * MIB + 1, 10**30):
        connection = server.connect()
        connection.sendall(
            f"POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n".encode()
        )
        assert connection.recv(65536).startswith((b"HTTP/1.1 413", b"HTTP/1.1 400"))
        connection.close()


@pytest.mark.parametrize("piece", [b"X-Filler: " + b"x" * 1000 + b"\r\n", b"x" * 1000])
def test_headers_without_end_are_cut_off(server: RunningServer, piece: bytes) -> None:
    connection = server.connect()
    connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Long: ")
    with contextlib.suppress(ConnectionError):
        for _ in range(100_000):
            connection.sendall(piece)
        pytest.fail("the server takes 100 MB of headers")
    connection.close()


@pytest.mark.parametrize("begin", [b"0\r\nX-Long: ", b"1;"])
@pytest.mark.parametrize("piece", [b"x\r\nX-Filler: " + b"x" * 1000, b"x" * 1000])
def test_what_is_no_body_is_cut_off_behind_the_headers_too(server: RunningServer, begin: bytes, piece: bytes) -> None:
    """Trailers and the extensions of chunks."""
    connection = server.connect()
    connection.sendall(
        f"POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n".encode() + begin
    )
    with contextlib.suppress(ConnectionError):
        for _ in range(100_000):
            connection.sendall(piece)
        pytest.fail("the server takes 100 MB that are no body")
    connection.close()


def test_trailers_are_passed_over_and_the_connection_goes_on(server: RunningServer) -> None:
    body = json.dumps(COMPLETION_FIELDS).encode()
    connection = server.connect()
    for _ in range(2):
        connection.sendall(
            f"POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
            + b"".join(b"1;name=value\r\n%c\r\n" % byte for byte in body)
            + b"0\r\nX-Checksum: 1\r\n\r\n"
        )
        answer = b""
        while ANSWER.encode() not in answer:
            answer += connection.recv(65536)
        assert answer.startswith(b"HTTP/1.1 200")
    connection.close()


def test_the_limit_is_configurable() -> None:
    with RunningServer(config={"max_body_size": 1000}) as server, server.client() as client:
        assert client.post(COMPLETIONS, content=padded(1000)).status_code == 200
        assert client.post(COMPLETIONS, content=padded(1001)).status_code == 413


def test_a_client_that_waits_for_leave_to_send_gets_it(server: RunningServer) -> None:
    body = padded(2000)
    head = (
        f"POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\nExpect: 100-continue\r\n\r\n"
    )
    connection = server.connect()
    connection.sendall(head.encode())
    assert connection.recv(65536).startswith(b"HTTP/1.1 100")
    connection.sendall(body)
    assert connection.recv(65536).startswith(b"HTTP/1.1 200")
    connection.close()
