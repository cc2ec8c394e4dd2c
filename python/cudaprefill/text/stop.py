"""Stop strings in text that comes in pieces."""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Passes text on up to the first stop string, holding back only what may still become one.

    Of several matches the one that is complete first counts, and of those complete at the same character the longest:
    the outcome does not depend on how the text was cut into pieces. Each stop string is matched by its
    Knuth-Morris-Pratt automaton, whose state is the number of characters matched so far.

        stop "abac"     text  x a b a b a c d     passed on  x a b
                       state  0 1 2 3 2 3 4       held       "a", "ab", "aba" while it could still match
    """

    def __init__(self, stops: Sequence[str], include: bool = False) -> None:
        """`include`: pass the stop string on as well."""
        self.matched: str | None = None
        self._stops = [(stop, _failures(stop)) for stop in stops]
        self._states = [0] * len(stops)
        self._include = include
        self._held = ""

    def push(self, text: str, may_stop: bool = True) -> str:
        """What can be passed on. After a match, which `matched` tells, nothing more is.

        may_stop: False lets stop strings that end in this piece of text pass.
        """
        if self.matched is not None:
            return ""
        if not self._stops:
            return text
        start, text = len(self._held), self._held + text
        for position in range(start, len(text)):
            stop = self._advance(text[position])
            if stop is not None and may_stop:
                self.matched, self._held = stop, ""
                end = position + 1
                return text[: end if self._include else end - len(stop)]
        passed = len(text) - max(self._states)
        self._held = text[passed:]
        return text[:passed]

    def finish(self) -> str:
        """What is still held, now that nothing follows."""
        held, self._held = self._held, ""
        return held

    def _advance(self, character: str) -> str | None:
        """The longest stop string that this character completes."""
        complete: str | None = None
        for number, (stop, failures) in enumerate(self._stops):
            state = self._states[number]
            while state and stop[state] != character:
                state = failures[state]
            if stop[state] == character:
                state += 1
            if state == len(stop):
                if complete is None or len(stop) > len(complete):
                    complete = stop
                state = failures[state]
            self._states[number] = state
        return complete


def _failures(stop: str) -> list[int]:
    """For each number of matched characters, the longest proper beginning of `stop` that these characters end with."""
    failures = [0, 0]
    for length in range(2, len(stop) + 1):
        state = failures[-1]
        while state and stop[state] != stop[length - 1]:
            state = failures[state]
        failures.append(state + 1 if stop[state] == stop[length - 1] else 0)
    return failures
