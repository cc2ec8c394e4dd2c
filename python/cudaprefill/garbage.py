"""Python's garbage collector, which finds nothing among imports and models."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Keeps the collector off inside, and afterwards out of all that is there by then, until `gc.unfreeze()`.

    Libraries and an engine are some 200,000 objects. To look through them again and again while they come is a quarter
    of a start. To look through them once takes 0.1 s in which no thread goes on and no stream gets a token, and would
    happen whenever enough requests are remembered.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()
