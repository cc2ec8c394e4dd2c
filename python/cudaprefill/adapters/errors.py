"""Why an adapter is refused."""

from __future__ import annotations


class AdapterError(ValueError):
    """The adapter's files are missing, damaged, of a kind that is not served, or made for another model."""


class UnknownAdapterError(ValueError):
    """No adapter of this name is loaded, or it is being unloaded."""
