"""A server of one's own comes up with its progress shown, and goes with us, however we go."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cudaprefill_tui.server_process import ServerFailedError, ServerProcess

PATIENCE = 30  # seconds


def python(script: str) -> list[str]:
    return [sys.executable, "-c", f"import sys, time, os, signal\n{script}"]


SERVES = python("print('cudaprefill: serving a b on http://127.0.0.1:123', flush=True)\nwhile os.read(0, 100): pass\n")


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def run(command: list[str], reports: list[tuple[str, float | None]]) -> tuple[str, ServerProcess]:
    server = ServerProcess([], command)
    url = await asyncio.wait_for(server.start(lambda line, share: reports.append((line, share))), PATIENCE)
    return url, server


def test_the_ready_line_gives_the_url_and_the_closed_input_ends_the_server() -> None:
    async def main() -> None:
        url, server = await run(SERVES, [])
        assert url == "http://127.0.0.1:123"
        pid = server.pid
        assert pid is not None
        assert is_alive(pid)
        await server.stop()
        assert server.returncode == 0
        assert not is_alive(pid)

    asyncio.run(main())


def test_progress_that_is_redrawn_in_place_is_reported_as_a_share() -> None:
    script = (
        "for n in (10, 55):\n"
        "    sys.stderr.write(f'\\rcudaprefill: loading the model {n:4}%'); sys.stderr.flush(); time.sleep(0.05)\n"
        "sys.stderr.write('\\r\\x1b[Kcudaprefill: loading the model took 1.0 s\\n')\n"
    )
    reports: list[tuple[str, float | None]] = []

    async def main() -> None:
        _, server = await run(python(script + SERVES[-1]), reports)
        await server.stop()
        assert list(server.log) == ["cudaprefill: loading the model took 1.0 s"]

    asyncio.run(main())
    assert [share for _, share in reports if share is not None] == [0.10, 0.55]
    assert all("\x1b" not in line for line, _ in reports)


def test_a_server_that_fails_is_quoted() -> None:
    async def main() -> None:
        with pytest.raises(ServerFailedError, match=r"status 3: cudaprefill: no file /nowhere"):
            await run(python("print('cudaprefill: no file /nowhere', file=sys.stderr); sys.exit(3)"), [])

    asyncio.run(main())


def test_a_command_that_is_not_there_is_an_oserror() -> None:
    async def main() -> None:
        with pytest.raises(OSError, match="nowhere"):
            await run(["/nowhere/at/all"], [])

    asyncio.run(main())


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_server_that_says_a_great_deal_is_not_held_up(stream: str, tmp_path: Path) -> None:
    done = tmp_path / "done"
    script = (
        "print('cudaprefill: serving m on http://h:1', flush=True)\n"
        f"for _ in range(300): sys.{stream}.write('x' * 4000 + '\\n')\n"
        f"sys.{stream}.flush(); open({str(done)!r}, 'w').close()\n"
        "while os.read(0, 100): pass\n"
    )

    async def main() -> None:
        _, server = await run(python(script), [])
        for _ in range(PATIENCE * 100):
            if done.exists():
                break
            await asyncio.sleep(0.01)
        assert done.exists()
        await server.stop()

    asyncio.run(main())


def test_a_server_that_loads_is_ended_at_once_and_one_that_will_not_go_is_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("cudaprefill_tui.server_process.END_SECONDS", 0.2)

    async def main(script: str, status: int) -> None:
        server = ServerProcess([], python(script))
        loading = asyncio.Event()
        start = asyncio.create_task(server.start(lambda line, share: loading.set()))
        await asyncio.wait_for(loading.wait(), PATIENCE)
        await server.stop()
        assert server.returncode == status
        with pytest.raises(ServerFailedError):
            await start

    asyncio.run(main("print('loading', file=sys.stderr); time.sleep(600)", -signal.SIGTERM))
    deaf = "signal.signal(signal.SIGTERM, signal.SIG_IGN); print('loading', file=sys.stderr)\nwhile True: time.sleep(9)"
    asyncio.run(main(deaf, -signal.SIGKILL))


def test_when_we_are_killed_the_server_ends(tmp_path: Path) -> None:
    """Killed so that no line of ours runs any more."""
    pid_file = tmp_path / "pid"
    parent = (
        "import asyncio, pathlib\n"
        "from cudaprefill_tui.server_process import ServerProcess\n"
        "async def main():\n"
        f"    server = ServerProcess([], {SERVES!r})\n"
        "    await server.start(lambda line, share: None)\n"
        f"    pathlib.Path({str(pid_file)!r}).write_text(str(server.pid))\n"
        "    await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", parent], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )
    deadline = time.monotonic() + PATIENCE
    while not (pid_file.exists() and pid_file.read_text()) and time.monotonic() < deadline:
        time.sleep(0.01)
    pid = int(pid_file.read_text())
    process.kill()
    process.wait()
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not is_alive(pid)
