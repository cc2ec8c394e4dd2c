"""Weights that are pickled: they can run code when opened, so they are named and left alone."""

from __future__ import annotations

from pathlib import Path

_PATTERNS = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


def say_what_is_missing(folder: Path, missing: str, remedy: str) -> str:
    """For an error: that `folder` holds no safetensors, whose names `missing` says, or only pickled weights."""
    pickled = sorted(path.name for pattern in _PATTERNS for path in folder.glob(pattern))
    if not pickled:
        return f"{folder} holds {missing}"
    return f"{folder} holds only pickled weights ({', '.join(pickled)}), which can run code when opened; {remedy}"
