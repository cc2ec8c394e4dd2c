"""What the terminal UI remembers between two runs: the theme and the layout.

The file is read once, written whole and at once, and never a reason to fail.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cudaprefill.protocol.codec import ProtocolError, build, encode, parse_object

MAX_BYTES = 1 << 20


@dataclass
class Preferences:
    """theme: a name of themes.py. splits: a splitter's id -> its first part's share. hidden: ids of panes not shown."""

    theme: str = ""
    splits: dict[str, float] = field(default_factory=dict)
    hidden: list[str] = field(default_factory=list)


def preferences_path(environment: Mapping[str, str] = os.environ) -> Path:
    """Where the XDG Base Directory Specification puts it; a relative XDG_CONFIG_HOME is to be ignored."""
    base = Path(environment.get("XDG_CONFIG_HOME", ""))
    if not base.is_absolute():
        base = Path(environment.get("HOME") or os.path.expanduser("~")) / ".config"
    return base / "cudaprefill" / "terminal-ui.json"


def load_preferences(path: Path) -> tuple[Preferences, str]:
    """The preferences, and why the file could not be used ("" where it could, or where there is none)."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            return Preferences(), f"{path} has more than {MAX_BYTES} bytes"
        return build(Preferences, parse_object(data.decode())), ""
    except FileNotFoundError:
        return Preferences(), ""
    except (OSError, UnicodeDecodeError, ProtocolError) as error:
        return Preferences(), f"{path}: {error}"


def save_preferences(path: Path, preferences: Preferences) -> str:
    """Replaces the file in one go: a reader sees the old one or the new one. Returns why it failed, or ""."""
    scratch = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, scratch = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(encode(preferences))
        os.replace(scratch, path)
    except OSError as error:
        if scratch and os.path.exists(scratch):
            os.unlink(scratch)
        return f"{path}: {error}"
    return ""
