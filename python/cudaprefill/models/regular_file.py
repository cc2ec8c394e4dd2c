"""Whether a path is one that may be opened."""

from __future__ import annotations

import stat
from pathlib import Path

from cudaprefill.models.errors import WeightsError


def check_regular_file(path: Path) -> None:
    """Raises FileNotFoundError, and WeightsError for what is there and is no file, or cannot be reached.

    To open a pipe is to wait for somebody to write to it, and safetensors would keep Python's lock while it waits.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise
    except OSError as error:
        raise WeightsError(f"{path} cannot be read: {error.strerror}") from None
    if not stat.S_ISREG(mode):
        raise WeightsError(f"{path} is not a file")
