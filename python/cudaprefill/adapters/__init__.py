"""Adapters in PEFT's formats: what they hold, which ones are loaded, and how they enter a step."""

from __future__ import annotations

from cudaprefill.adapters.adapter import Adapter, AdapterTarget
from cudaprefill.adapters.errors import AdapterError, UnknownAdapterError
from cudaprefill.adapters.registry import AdapterRegistry

__all__ = ["Adapter", "AdapterError", "AdapterRegistry", "AdapterTarget", "UnknownAdapterError"]
