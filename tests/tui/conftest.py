"""What all tests of the terminal UI share."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator

import pytest
import textual.app
import textual.pilot
from textual._context import active_app

TURN = 0.004  # seconds; timers of Textual that draw fire sixty times a second
MOST = 1.0


async def _until_drawn(min_sleep: float = 0.0, max_sleep: float = MOST) -> None:
    """Until nothing waits to be laid out or drawn, and nothing calls for it any more."""
    app = active_app.get()
    loop = asyncio.get_running_loop()
    end = loop.time() + max_sleep
    quiet = 0
    while quiet < 3 and loop.time() < end:
        await asyncio.sleep(TURN)
        screen = app.screen if app._screen_stack else None
        busy = screen is not None and (
            screen._layout_required
            or screen._dirty_widgets
            or screen._callbacks
            or any(widget._message_queue is not None and not widget._message_queue.empty() for widget in app._registry)
        )
        quiet = 0 if busy else quiet + 1


@pytest.fixture(scope="session")
def settled_heap() -> Iterator[None]:
    """What was imported is no garbage and need not be looked through again."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def garbage_is_collected_once_a_test(settled_heap: None) -> Iterator[None]:
    """An application is a web of references; looking for garbage while one starts takes a quarter of the time."""
    gc.disable()
    yield
    gc.enable()
    gc.collect()


@pytest.fixture(autouse=True)
def pilot_waits_for_drawings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pilot waits after each key until the whole process is idle, by the clock: long where others share the processor.
    Here it waits for what tests look at.
    """
    monkeypatch.setattr(textual.app, "wait_for_idle", _until_drawn)
    monkeypatch.setattr(textual.pilot, "wait_for_idle", _until_drawn)
