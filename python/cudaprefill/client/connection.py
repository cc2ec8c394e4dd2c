"""How both clients reach a websocket: its address, the key, and the waits between attempts."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidMessage, InvalidStatus, WebSocketException

from cudaprefill.client.errors import ConnectionFailedError, ServerError

# A snapshot of 100,000 blocks, or a long answer in one event, is well below this.
MAX_MESSAGE_BYTES = 64 * 2**20


def websocket_url(url: str, path: str) -> str:
    """The address of a websocket of a server; `url` is the server's, as http(s):// or ws(s)://, with or without /v1.

    websocket_url("http://localhost:8000", "/v1/responses") == "ws://localhost:8000/v1/responses"
    """
    parts = urlsplit(url)
    schemes = {"http": "ws", "ws": "ws", "https": "wss", "wss": "wss"}
    if parts.scheme not in schemes or not parts.netloc:
        raise ValueError(f"url must be http://HOST:PORT or alike, got {url!r}")
    base = parts.path.rstrip("/").removesuffix(path).removesuffix("/v1")
    return urlunsplit((schemes[parts.scheme], parts.netloc, base + path, "", ""))


def reason(failure: Exception) -> str:
    """Why a connection did not come about, in words."""
    if isinstance(failure, InvalidMessage):
        return "what listens there does not speak websockets: it is no cudaprefill server"
    if isinstance(failure, ConnectionRefusedError) or "Connect call failed" in str(failure):
        return "nobody listens there"
    if isinstance(failure, (TimeoutError, asyncio.TimeoutError)):
        return "no answer in time"
    return (failure.strerror if isinstance(failure, OSError) else None) or str(failure) or type(failure).__name__


@dataclass(frozen=True)
class Backoff:
    """Waits between attempts: doubled each time up to a bound, a random part of each so that clients spread out.

    attempts: how many in a row may fail before the client gives up; None is for ever.
    """

    first: float = 0.2  # seconds
    longest: float = 10.0
    attempts: int | None = 8

    def delay(self, failures: int) -> float:
        """Seconds to wait after so many failures in a row, 1 or more."""
        return min(self.longest, self.first * 2.0 ** min(failures - 1, 32)) * random.uniform(0.5, 1.0)


async def open_connection(
    url: str,
    api_key: str | None,
    backoff: Backoff,
    *,
    open_timeout: float = 10.0,
    on_failure: Callable[[int, Exception], None] | None = None,
) -> ClientConnection:
    """A connection, after as many attempts as `backoff` allows. `on_failure` hears of each that failed.

    Raises ServerError at once for a refusal that another attempt would not change (401, 404), ConnectionFailedError
    for a certificate that is not trusted, and when the attempts are used up.
    """
    headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
    failures = 0
    while True:
        try:
            return await connect(
                url, additional_headers=headers, open_timeout=open_timeout, max_size=MAX_MESSAGE_BYTES, compression=None
            )
        except ssl.SSLCertVerificationError as error:
            words = f"{error.verify_message}; SSL_CERT_FILE may name a file of certificates to trust"
            raise ConnectionFailedError(f"no connection to {url}: its certificate is not trusted: {words}") from error
        except InvalidStatus as error:
            status = error.response.status_code
            if status < 500 and status != 429:
                raise ServerError(f"{url} answered {status}", status=status) from error
            failure: Exception = error
        except (OSError, TimeoutError, asyncio.TimeoutError, WebSocketException) as error:
            failure = error
        failures += 1
        if on_failure is not None:
            on_failure(failures, failure)
        if backoff.attempts is not None and failures >= backoff.attempts:
            words = f"no connection to {url} in {failures} attempts: {reason(failure)}"
            raise ConnectionFailedError(words) from failure
        await asyncio.sleep(backoff.delay(failures))
