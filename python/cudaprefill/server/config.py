"""What the person who starts a server may set, beside the engine's own settings."""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass

MIB = 2**20


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """Raises ValueError naming the setting, its value and what is allowed.

    host, port: where to listen; port 0 takes a free one.
    api_keys: any of them opens the server; empty: no key is asked for.
    allow_unauthenticated: listen on more than loopback without a key.
    ssl_certfile, ssl_keyfile: PEM files of a certificate with those that vouch for it, and of its key, which may be in
        the same file; with them the server speaks TLS, and nothing else.
    served_model_names: what clients may call the model; the first is the one that answers carry.
    max_connections: at once, of all clients; None: as many as the process may have files open, less some.
    receive_timeout: seconds that a request may take to come, from its first byte, or that of its connection, on.
    max_body_size: bytes of an HTTP request's body.
    max_websocket_message_size: bytes of one websocket message.
    max_unread_output: bytes of a stream that may wait for its reader before the request is aborted.
    max_responses_per_connection: Responses that one websocket may have at once.
    max_stored_responses, max_stored_response_bytes: of finished Responses, so that later ones can continue them.
    shutdown_timeout: seconds that running requests get to finish in before they are aborted.
    restart_engine: build the engine anew when it has died; else the server ends.
    stuck_after: seconds that one step may last before /health calls the engine stuck.
    allow_runtime_adapters: the folder from whose inside adapters may be loaded by a request; None: by none.
    access_log: a line for each request on standard error, without its body.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: tuple[str, ...] = ()
    allow_unauthenticated: bool = False
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    served_model_names: tuple[str, ...] = ()
    max_connections: int | None = None
    receive_timeout: float = 60.0
    max_body_size: int = 8 * MIB
    max_websocket_message_size: int = MIB
    max_unread_output: int = MIB
    max_responses_per_connection: int = 64
    max_stored_responses: int = 10_000
    max_stored_response_bytes: int = 256 * MIB
    shutdown_timeout: float = 30.0
    restart_engine: bool = False
    stuck_after: float = 60.0
    allow_runtime_adapters: str | None = None
    access_log: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ValueError(f"port must be between 0 and 65535, got {self.port}")
        for name in (
            "max_connections",
            "max_body_size",
            "max_websocket_message_size",
            "max_unread_output",
            "max_responses_per_connection",
            "max_stored_responses",
            "max_stored_response_bytes",
        ):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if not 0 <= self.shutdown_timeout < float("inf"):
            raise ValueError(f"shutdown_timeout must be at least 0 seconds, got {self.shutdown_timeout}")
        for name in ("stuck_after", "receive_timeout"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be more than 0 seconds, got {getattr(self, name)}")
        if self.ssl_keyfile is not None and self.ssl_certfile is None:
            raise ValueError(f"ssl_keyfile is {self.ssl_keyfile}, and there is no ssl_certfile")
        if self.allow_runtime_adapters is not None and not os.path.isdir(self.allow_runtime_adapters):
            raise ValueError(f"allow_runtime_adapters must be a folder, got {self.allow_runtime_adapters!r}")
        for name in ("api_keys", "served_model_names"):
            if not all(getattr(self, name)):
                raise ValueError(f"{name} must not hold an empty string")
        if not (self.api_keys or self.allow_unauthenticated or is_loopback(self.host)):
            raise ValueError(
                f"host is {self.host}, where others can reach the server, and there is no api_key: "
                "give --api-key, or say --allow-unauthenticated if everybody may use it"
            )


def is_loopback(host: str) -> bool:
    """Whether `host` is this machine alone. Names other than localhost may be anything, so they are not."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
