"""A result of one of the experiments that docs/tuning.md is made of, as a file."""

from __future__ import annotations

import json
import shlex
import sys
import time
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from benchmarks.figures import machine
from benchmarks.page_parts import RESULTS
from benchmarks.tuning.page import refresh


@dataclass(frozen=True)
class Result:
    """What was run, where and since when."""

    command: str
    machine: dict[str, Any]
    start: float

    @classmethod
    def begin(cls, module: str) -> Result:
        arguments = [each for each in sys.argv[1:] if each != "--keep"]
        return cls(shlex.join(["python", "-m", module, *arguments]), machine(), time.monotonic())

    def end(self, figures: dict[str, Any], path: Path | None, keep: str | None) -> None:
        """Writes `figures` to `path` and, under the name `keep`, into the results and docs/tuning.md."""
        seconds = round(time.monotonic() - self.start)
        print(f"in {seconds} s")
        content = {"command": self.command, "machine": self.machine, "seconds": seconds, **figures}
        text = json.dumps(content, indent=1) + "\n"
        if path is not None:
            path.write_text(text)
        if keep is not None:
            date = datetime.now(timezone.utc).date().isoformat()
            (RESULTS / f"{date}-{keep}.json").write_text(text)
            refresh()
