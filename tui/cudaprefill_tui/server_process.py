"""A server of one's own: started for this terminal, gone with it.

Its standard input is a pipe that nobody writes to; when we are gone, however we went, the pipe closes and the server
ends (`--exit-with-stdin`). Its standard error is a pseudo-terminal, so that it draws its progress; we read that.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

READY = re.compile(r"cudaprefill: serving (?P<model>.+) on (?P<url>https?://\S+)\s*$")
PERCENT = re.compile(r"(\d{1,3})\s?%")
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
MAX_LOG_LINES = 200
MAX_LINE = 4096
END_SECONDS = 5.0  # given to an orderly end, then to SIGTERM; after that it is killed

ReportProgress = Callable[[str, float | None], None]


class ServerFailedError(Exception):
    """The server ended before it was ready; the message has its last words."""


class ServerProcess:
    """`await start(report)` returns the URL, again for another one when it is gone; `await stop()` ends it."""

    def __init__(self, arguments: Sequence[str], command: Sequence[str] | None = None) -> None:
        """arguments: flags of `cudaprefill serve`. command: what to run instead of this Python's `cudaprefill`."""
        own = [
            sys.executable,
            "-m",
            "cudaprefill.cli.main",
            "serve",
            "--port",
            "0",
            "--exit-with-stdin",
            "--shutdown-timeout",
            "0",
        ]
        self._command = [*(command or own), *arguments]
        self._process: asyncio.subprocess.Process | None = None
        self._drains: list[asyncio.Task[None]] = []
        self._report: ReportProgress = lambda line, share: None
        self._url: asyncio.Future[str] | None = None
        self._last = ""
        self.log: deque[str] = deque(maxlen=MAX_LOG_LINES)

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def returncode(self) -> int | None:
        return self._process.returncode if self._process else None

    async def start(self, report: ReportProgress) -> str:
        """Reports lines of the server's standard error, with the share of the work that is done where one says it.

        Raises ServerFailedError, OSError.
        """
        await self._stop_drains()
        self._report = report
        self._url = asyncio.get_running_loop().create_future()
        master, slave = os.openpty()
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=slave,
                start_new_session=True,  # a Ctrl-C or a hangup of our terminal is ours to handle
                env={**os.environ, "NO_COLOR": "1"},
            )
        except BaseException:
            os.close(master)
            raise
        finally:
            os.close(slave)
        assert self._process.stdout is not None
        self._drains = [
            asyncio.create_task(self._read_errors(master)),
            asyncio.create_task(self._read_output(self._process.stdout)),
        ]
        ended: asyncio.Future[int] = asyncio.ensure_future(self._process.wait())
        waits: set[asyncio.Future[Any]] = {self._url, ended}
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        if self._url.done():
            ended.cancel()
            return self._url.result()
        await asyncio.wait(self._drains, timeout=1.0)  # its last words
        words = "\n".join(list(self.log)[-5:]) or "it said nothing"
        raise ServerFailedError(f"the server ended with status {self._process.returncode}: {words}")

    async def wait(self) -> str:
        """Until the server that was started is gone; says how it went."""
        assert self._process is not None
        code = await self._process.wait()
        return f"was ended by signal {-code}" if code < 0 else f"ended with status {code}"

    async def stop(self) -> None:
        process = self._process
        if process is not None and process.returncode is None:
            is_serving = self._url is not None and self._url.done()
            if process.stdin is not None:
                process.stdin.close()
            # While it loads it does not look at its standard input.
            for end in (None if is_serving else signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
                if end is not None:
                    with contextlib.suppress(ProcessLookupError):
                        process.send_signal(end)
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(process.wait(), END_SECONDS)
                    break
        await self._stop_drains()

    async def _stop_drains(self) -> None:
        for drain in self._drains:
            drain.cancel()
        await asyncio.gather(*self._drains, return_exceptions=True)
        self._drains = []

    async def _read_output(self, stream: asyncio.StreamReader) -> None:
        """Standard output says one thing; what else comes is read so that the server never waits for us."""
        rest = b""
        while data := await stream.read(1 << 16):
            *lines, rest = (rest + data).split(b"\n")
            rest = rest[-MAX_LINE:]
            for line in lines:
                found = READY.search(line.decode(errors="replace"))
                if found and self._url is not None and not self._url.done():
                    self._url.set_result(found["url"])

    async def _read_errors(self, master: int) -> None:
        loop = asyncio.get_running_loop()
        ready = asyncio.Event()
        os.set_blocking(master, False)
        loop.add_reader(master, ready.set)
        rest = ""
        try:
            while True:
                await ready.wait()
                ready.clear()
                with contextlib.suppress(BlockingIOError):
                    while data := os.read(master, 1 << 16):
                        *lines, rest = re.split(r"[\r\n]+", rest + data.decode(errors="replace"))
                        rest = rest[-MAX_LINE:]
                        # A line being redrawn has no end yet: it starts with a carriage return, so it is what is left.
                        for line in [*lines, rest]:
                            self._tell(line, is_whole=line is not rest)
        except OSError:  # how a pseudo-terminal says that its other end is closed
            pass
        finally:
            loop.remove_reader(master)
            os.close(master)

    def _tell(self, line: str, *, is_whole: bool) -> None:
        line = ESCAPES.sub("", line).strip()
        if not line:
            return
        percent = PERCENT.search(line)
        if is_whole and not percent:
            self.log.append(line)
        if line != self._last:
            self._last = line
            self._report(line, min(int(percent[1]), 100) / 100 if percent else None)
