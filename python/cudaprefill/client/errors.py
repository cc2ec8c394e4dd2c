"""What can go wrong between a client and a server."""

from __future__ import annotations


class ClientError(Exception):
    """The base of all errors of this package."""


class ConnectionFailedError(ClientError):
    """No connection came about within the attempts and the time allowed; the cause is the last attempt's."""


class ConnectionLostError(ClientError):
    """The connection broke, or was closed, while a response was under way; the message names the response."""


class ServerError(ClientError):
    """The server refused a request, or a response failed.

    status: the HTTP status of a refusal; None for a response that failed under way.
    code, param: as in the server's error body; param names the field that is at fault.
    """

    def __init__(
        self, message: str, *, status: int | None = None, code: str | None = None, param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
