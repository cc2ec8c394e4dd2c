"""`cudaprefill serve` as a process of its own, as people run it."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator

COMMAND = [sys.executable, "-c", "import sys; from cudaprefill.cli.main import main; sys.exit(main())", "serve"]


@contextlib.contextmanager
def serving(*flags: str) -> Iterator[str]:
    """The URL of a server that ends with the block."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen(
        [*COMMAND, "--port", "0", "--exit-with-stdin", *flags],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        announced = re.fullmatch(r"cudaprefill: serving .* on (http://\S+)\n", line)
        assert announced, f"the server said {line!r}"
        yield announced[1]
    finally:
        process.stdin.close()
        try:
            status = process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        process.stdout.close()
    assert status == 0, f"the server ended with {status}"
