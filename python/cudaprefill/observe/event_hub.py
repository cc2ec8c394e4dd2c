"""From the engine's thread to an event loop: what happened, handed over once a step."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from cudaprefill.observe.events import RequestEvent, StepEvent

Event = RequestEvent | StepEvent
Listener = Callable[[list[Event]], None]

_logger = logging.getLogger(__name__)


class EventHub:
    """Collects in the engine's thread, delivers in the loop.

        engine's thread   on_event, on_step ... hand_over | on_event ...
                                                |
        loop                                    +--> every listener: [event, event, ...]

    Events come in the order in which they happened, and before the tokens of their step: who has a token has been told
    of it. Nothing is collected, or even made, while nobody listens.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, switch: Callable[[bool], None]) -> None:
        """`switch` has the engine tell its events, or stop, between two steps."""
        self._loop = loop
        self._switch = switch
        self._listeners: list[Listener] = []
        self._collected: list[Event] = []

    # --- In the loop ---

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Gives `listener` what happens from now on, a list for each step. Returns what ends that.

        The list belongs to all listeners: it must not be changed. A listener that raises is dropped, and logged.
        """
        if not self._listeners:
            self._switch(True)
        self._listeners.append(listener)
        return lambda: self._unsubscribe(listener)

    def _unsubscribe(self, listener: Listener) -> None:
        """Harmless when repeated."""
        if listener in self._listeners:
            self._listeners.remove(listener)
            if not self._listeners:
                self._switch(False)

    def touch(self) -> None:
        """Gives every listener an empty list: something changed that no event tells, such as the settings."""
        self._deliver([])

    def _deliver(self, events: list[Event]) -> None:
        for listener in tuple(self._listeners):
            try:
                listener(events)
            except Exception:
                _logger.exception("a listener of engine events failed and gets no more of them: %r", listener)
                self._unsubscribe(listener)

    # --- In the engine's thread ---

    def on_event(self, event: RequestEvent) -> None:
        self._collected.append(event)

    def on_step(self, event: StepEvent) -> None:
        self._collected.append(event)

    def hand_over(self) -> None:
        """Sends what was collected since the last call; costs nothing if that is nothing."""
        if self._collected:
            events, self._collected = self._collected, []
            self.post(lambda: self._deliver(events))

    def post(self, callback: Callable[[], None]) -> None:
        """Runs `callback` in the loop, after the events handed over so far and before all later ones.

        So a snapshot taken in the engine's thread can be put into the order of events. Lost with a loop that has ended.
        """
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(callback)
