"""Events told right where they happen, for an engine whose clients have no event loop."""

from __future__ import annotations

from collections.abc import Callable

from cudaprefill.observe.events import RequestEvent, StepEvent

Listener = Callable[[RequestEvent | StepEvent], None]


class DirectHub:
    """Listeners are called in the engine's thread, so they must only keep or hand over what they are told."""

    def __init__(self, *listeners: Listener) -> None:
        self._listeners = listeners

    def on_event(self, event: RequestEvent) -> None:
        for listener in self._listeners:
            listener(event)

    def on_step(self, event: StepEvent) -> None:
        for listener in self._listeners:
            listener(event)
