"""Clients of a running server. Nothing here imports torch or the engine."""

from cudaprefill.client.connection import Backoff
from cudaprefill.client.errors import ClientError, ConnectionFailedError, ConnectionLostError, ServerError
from cudaprefill.client.responses import AsyncClient, ResponseStream
from cudaprefill.client.sync_client import Client, SyncResponseStream

__all__ = [
    "AsyncClient",
    "Backoff",
    "Client",
    "ClientError",
    "ConnectionFailedError",
    "ConnectionLostError",
    "ResponseStream",
    "ServerError",
    "SyncResponseStream",
]
