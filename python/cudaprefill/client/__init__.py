"""Clients of a running server. Nothing here imports torch or the engine."""

from cudaprefill.client.connection import Backoff
from cudaprefill.client.errors import ClientError, ConnectionFailedError, ConnectionLostError, ServerError

__all__ = ["Backoff", "ClientError", "ConnectionFailedError", "ConnectionLostError", "ServerError"]
