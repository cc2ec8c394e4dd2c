"""No client holds a connection for ever by what it does not send, and no number of them holds all."""

from __future__ import annotations

import http.client
import json
import resource
import socket
from collections.abc import Iterator

import pytest

from cudaprefill.server.config import ServerConfig
from cudaprefill.server.http_protocol import HttpProtocol
from cudaprefill.server.run import OTHER_FILES, most_connections
from tests.server.asking import COMPLETION_FIELDS, COMPLETIONS
from tests.server.chat_server import ChatServer, Socket
from tests.server.running import RunningServer

BODY = json.dumps(COMPLETION_FIELDS).encode()
HEAD = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(BODY)}\r\n\r\n".encode()


class Deadlines:
    """The protocols of all connections, whose deadlines pass when a test says so and never by themselves."""

    def __init__(self, server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
        self._server = server
        self.protocols: list[HttpProtocol] = []
        made = HttpProtocol.connection_made

        def noting(protocol: HttpProtocol, transport: object) -> None:
            made(protocol, transport)  # type: ignore[arg-type]
            self.protocols.append(protocol)

        monkeypatch.setattr(HttpProtocol, "connection_made", noting)

    def connect(self) -> tuple[socket.socket, HttpProtocol]:
        known = len(self.protocols)
        connection = self._server.connect()
        self._server.wait_until(lambda: len(self.protocols) > known, "the connection")
        return connection, self.protocols[known]

    def send(self, connection: socket.socket, protocol: HttpProtocol, data: bytes) -> None:
        """Until the server has it."""
        received = 0
        original = protocol.data_received

        def counting(piece: bytes) -> None:
            nonlocal received
            original(piece)
            received += len(piece)

        protocol.data_received = counting  # type: ignore[method-assign]
        connection.sendall(data)
        self._server.wait_until(lambda: received == len(data), "the bytes")
        del protocol.data_received

    def waits(self, protocol: HttpProtocol) -> bool:
        return protocol._deadline is not None

    def pass_(self, protocol: HttpProtocol) -> None:
        async def now() -> None:
            assert protocol._deadline is not None
            protocol._deadline.cancel()
            protocol._on_deadline()

        self._server.await_(now())


@pytest.fixture
def server() -> Iterator[RunningServer]:
    with RunningServer(config={"receive_timeout": 10_000.0}) as server:
        yield server


@pytest.fixture
def deadlines(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> Deadlines:
    return Deadlines(server, monkeypatch)


def read_to_end(connection: socket.socket) -> bytes:
    parts = []
    while part := connection.recv(65536):
        parts.append(part)
    connection.close()
    return b"".join(parts)


def assert_answered(connection: socket.socket) -> None:
    """Reads one whole answer, and no more."""
    answer = http.client.HTTPResponse(connection)
    answer.begin()
    assert answer.status == 200
    answer.read()


def assert_error(answer: bytes, status: int, code: str) -> dict[str, str]:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(f"HTTP/1.1 {status} ".encode())
    error: dict[str, str] = json.loads(body)["error"]
    assert error["code"] == code
    return error


@pytest.mark.parametrize(
    "sent", [b"", HEAD[:20], HEAD, HEAD + BODY[:-1]], ids=["nothing", "half a head", "head", "body"]
)
def test_what_does_not_come_whole_is_given_up(server: RunningServer, deadlines: Deadlines, sent: bytes) -> None:
    connection, protocol = deadlines.connect()
    if sent:
        deadlines.send(connection, protocol, sent)
    deadlines.pass_(protocol)
    assert "10000 seconds" in assert_error(read_to_end(connection), 408, "request_timeout")["message"]
    server.wait_until(lambda: server.state.in_flight == 0)


def test_a_request_that_came_may_take_its_time(server: RunningServer, deadlines: Deadlines) -> None:
    server.runner.gate.clear()
    connection, protocol = deadlines.connect()
    deadlines.send(connection, protocol, HEAD + BODY)
    assert not deadlines.waits(protocol)
    server.runner.gate.set()
    assert_answered(connection)
    connection.close()


def test_an_empty_line_behind_an_answer_is_no_way_to_stay(server: RunningServer, deadlines: Deadlines) -> None:
    connection, protocol = deadlines.connect()
    deadlines.send(connection, protocol, HEAD + BODY)
    assert_answered(connection)
    server.wait_until(lambda: protocol.timeout_keep_alive_task is not None, "the wait for another request")
    deadlines.send(connection, protocol, b"\r\n")
    assert protocol.timeout_keep_alive_task is None
    deadlines.pass_(protocol)
    assert_error(read_to_end(connection), 408, "request_timeout")


def test_an_answer_under_way_is_not_broken_off_for_the_next_request(
    server: RunningServer, deadlines: Deadlines
) -> None:
    server.runner.gate.clear()
    connection, protocol = deadlines.connect()
    deadlines.send(connection, protocol, HEAD + BODY + HEAD)
    deadlines.pass_(protocol)
    assert deadlines.waits(protocol), "it begins anew"
    server.runner.gate.set()
    assert_answered(connection)
    server.wait_until(lambda: protocol._unanswered[0].response_complete)
    deadlines.pass_(protocol)
    assert_error(read_to_end(connection), 408, "request_timeout")


def test_a_websocket_has_no_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    with ChatServer() as server:
        deadlines = Deadlines(server, monkeypatch)
        with Socket(server) as socket:
            (protocol,) = deadlines.protocols
            assert not deadlines.waits(protocol)
            socket.create("hello", max_output_tokens=3)
            socket.until("response.completed", "response.incomplete")


def test_one_connection_too_many_is_told_so_and_leaves_no_trace() -> None:
    with RunningServer(config={"max_connections": 2}) as server:
        first, second = server.connect(), server.connect()
        for _ in range(3):
            error = assert_error(read_to_end(server.connect()), 503, "too_many_connections")
            assert "max_connections is 2" in error["message"]
        for connection in (first, second):
            connection.sendall(HEAD + BODY)
            assert_answered(connection)
        first.close()

        def there_is_room() -> bool:
            with server.client() as client:
                return client.get("/health").status_code == 200

        server.wait_until(there_is_room, "the place of the one that went")
        second.close()


def test_unless_set_connections_leave_the_process_some_files() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1000, before[1]))
        assert most_connections(ServerConfig()) == 1000 - OTHER_FILES
        assert most_connections(ServerConfig(max_connections=7)) == 7
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize(
    ("setting", "value", "reason"),
    [
        ("max_connections", 0, "max_connections must be at least 1, got 0"),
        ("receive_timeout", 0.0, "receive_timeout must be more than 0 seconds, got 0.0"),
        ("ssl_keyfile", "key.pem", "ssl_keyfile is key.pem, and there is no ssl_certfile"),
    ],
)
def test_settings_that_cannot_be(setting: str, value: object, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        ServerConfig(**{setting: value})  # type: ignore[arg-type]
