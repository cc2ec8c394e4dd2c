"""A client of `/v1/telemetry` that only reads, or also decodes: what is left of the UI's cost without the UI.

PYTHONPATH=python:tui:. python -m benchmarks.telemetry_reader URL [--decode]
"""

from __future__ import annotations

import argparse
import asyncio

from cudaprefill.client.connection import Backoff, open_connection, websocket_url
from cudaprefill.client.engine_view import EngineView
from cudaprefill.client.telemetry import TelemetryConnection
from cudaprefill.protocol.codec import encode
from cudaprefill.protocol.telemetry import TelemetrySubscribe
from cudaprefill_tui.server_link import UPDATES_PER_SECOND


async def read(url: str) -> None:
    connection = await open_connection(websocket_url(url, "/v1/telemetry"), None, Backoff())
    await connection.send(encode(TelemetrySubscribe(rate=UPDATES_PER_SECOND)))
    async for _ in connection:
        pass


async def decode(url: str) -> None:
    view = EngineView()
    async with TelemetryConnection(url, rate=UPDATES_PER_SECOND) as telemetry:
        async for message in telemetry:
            view.apply(message)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--decode", action="store_true", help="and keep an EngineView up to date")
    arguments = parser.parse_args()
    asyncio.run((decode if arguments.decode else read)(arguments.url))
