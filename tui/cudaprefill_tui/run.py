"""Runs the application, and leaves the terminal and the machine as they were."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading

from .app import CudaprefillApp, Setup

# A terminal that is gone may block whoever writes to it, and then nothing of ours runs any more.
HANGUP_SECONDS = 3.0
STARTED_SECONDS = 3.0  # by then everything is there that stays to the end
COLLECT_EVERY = 10_000  # new objects


def run(setup: Setup) -> int:
    """Returns the exit status: 0, 1 after a crash, 128 + the number of the signal that ended it."""
    return asyncio.run(_run(setup))


async def _run(setup: Setup) -> int:
    app = CudaprefillApp(setup)
    ended_by = 0

    def end(number: int) -> None:
        nonlocal ended_by
        ended_by = ended_by or 128 + number
        if number == signal.SIGHUP:
            guard = threading.Timer(HANGUP_SECONDS, os._exit, (ended_by,))
            guard.daemon = True
            guard.start()
        app.exit()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        loop.add_signal_handler(number, end, number)
    loop.call_later(STARTED_SECONDS, spare_collector)
    try:
        await app.run_async()
    finally:
        if setup.server is not None:
            await setup.server.stop()
    return app.return_code or ended_by


def spare_collector() -> None:
    """In what stays to the end there is no garbage to be found, and looking takes a fifth of our processor time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_EVERY)
