"""One thread for the tiny models of these tests: waking a second one costs more than their arithmetic."""

from __future__ import annotations

from tests.models.conftest import one_thread

__all__ = ["one_thread"]
