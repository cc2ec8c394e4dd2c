"""Adapters in PEFT's formats: what they hold, which ones are loaded, and how they enter a step.

Loaded at first use: the scheduler, which knows virtual tokens by their number, needs no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cudaprefill.adapters.adapter import Adapter, AdapterTarget
    from cudaprefill.adapters.errors import AdapterError, UnknownAdapterError
    from cudaprefill.adapters.registry import AdapterRegistry

_HOMES = {
    "Adapter": "adapter",
    "AdapterError": "errors",
    "AdapterRegistry": "registry",
    "AdapterTarget": "adapter",
    "UnknownAdapterError": "errors",
}

__all__ = ["Adapter", "AdapterError", "AdapterRegistry", "AdapterTarget", "UnknownAdapterError"]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
