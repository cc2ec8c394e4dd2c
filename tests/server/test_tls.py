"""The server and its clients over TLS, with a certificate of the test's own."""

from __future__ import annotations

import asyncio
import json
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from cudaprefill.cli.main import main
from cudaprefill.client import Client, ConnectionFailedError
from cudaprefill.server.config import ServerConfig
from cudaprefill.server.tls import check_certificate
from cudaprefill_tui.server_link import ServerLink
from tests.server.asking import COMPLETION_FIELDS, COMPLETIONS
from tests.server.chat_server import ChatServer
from tests.server.running import RunningServer

pytestmark = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="openssl, which makes the certificate, is missing"
)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A certificate for 127.0.0.1 and its key."""
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = str(folder / "certificate.pem"), str(folder / "key.pem")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=cudaprefill"),
            *("-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate),
        ],
        check=True,
        capture_output=True,
    )
    return certificate, key


@pytest.fixture(scope="module")
def server(files: tuple[str, str]) -> Iterator[ChatServer]:
    with ChatServer(config={"ssl_certfile": files[0], "ssl_keyfile": files[1]}) as server:
        yield server


@pytest.fixture
def trusted(files: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients take the certificate for good, as people make them do."""
    monkeypatch.setenv("SSL_CERT_FILE", files[0])


def test_http_is_spoken_over_tls_and_not_without(server: ChatServer, files: tuple[str, str]) -> None:
    assert server.url.startswith("https://127.0.0.1:")
    context = ssl.create_default_context(cafile=files[0])
    assert httpx.get(f"{server.url}/health", verify=context).status_code == 200
    with pytest.raises(httpx.TransportError):
        httpx.get(f"{server.url.replace('https', 'http')}/health")


@pytest.mark.usefixtures("trusted")
@pytest.mark.parametrize("scheme", ["https", "wss"])
def test_the_client_asks_over_tls(server: ChatServer, scheme: str) -> None:
    with (
        Client(server.url.replace("https", scheme)) as client,
        client.respond("hello", max_output_tokens=3) as response,
    ):
        assert response.wait().status in ("completed", "incomplete")


@pytest.mark.usefixtures("trusted")
def test_the_desktop_watches_over_tls(server: ChatServer) -> None:
    async def watch() -> None:
        link = ServerLink(server.url)
        live = asyncio.Event()
        link.on_news = lambda: live.set() if link.state == "live" else None
        running = asyncio.create_task(link.run())
        await asyncio.wait_for(live.wait(), 60)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await link.close()

    asyncio.run(watch())


def test_a_certificate_that_is_not_trusted_is_told_at_once(server: ChatServer) -> None:
    with (
        Client(server.url) as client,
        pytest.raises(ConnectionFailedError, match=r"is not trusted: self-signed .* SSL_CERT_FILE"),
    ):
        client.connect()


def test_nothing_is_computed_for_a_connection_too_many(files: tuple[str, str]) -> None:
    """Not even if it came with a request at once: TLS hands over what it has when the connection is closing."""
    body = json.dumps(COMPLETION_FIELDS).encode()
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    context = ssl.create_default_context(cafile=files[0])

    def connect(server: RunningServer) -> ssl.SSLSocket:
        return context.wrap_socket(server.connect(), server_hostname="127.0.0.1")

    config = {"ssl_certfile": files[0], "ssl_keyfile": files[1], "max_connections": 1}
    with RunningServer(config=config) as server, connect(server) as first:
        first.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert first.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
        for _ in range(5):
            with connect(server) as refused:
                refused.sendall(head + body)
                assert refused.recv(1 << 16).startswith(b"HTTP/1.1 503 ")
                while refused.recv(1 << 16):
                    pass
        server.wait_until_idle()
        assert server.in_engine(lambda engine: engine.scheduler.num_steps) == 0


def test_files_that_cannot_be_are_named_before_the_model_is_loaded(
    files: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    certificate, key = files
    other = tmp_path / "other.pem"
    other.write_text("no certificate")
    for flags, reason in (
        (["--ssl-certfile", "/nowhere.pem"], "No such file or directory: '/nowhere.pem'"),
        (["--ssl-certfile", certificate, "--ssl-keyfile", str(other)], f"--ssl-keyfile {other} cannot be used"),
        (["--ssl-certfile", str(other)], f"--ssl-certfile {other} cannot be used"),
        (["--ssl-keyfile", key], "there is no ssl_certfile"),
    ):
        assert main(["serve", *flags]) == 1
        assert reason in capsys.readouterr().err


def test_a_key_with_a_password_is_refused_and_not_waited_for(files: tuple[str, str], tmp_path: Path) -> None:
    key = tmp_path / "locked.pem"
    subprocess.run(
        ["openssl", "rsa", "-aes256", "-passout", "pass:secret", "-in", files[1], "-out", str(key)],
        check=True,
        capture_output=True,
    )
    with pytest.raises(ValueError, match="encrypted"):
        check_certificate(ServerConfig(ssl_certfile=files[0], ssl_keyfile=str(key)))
