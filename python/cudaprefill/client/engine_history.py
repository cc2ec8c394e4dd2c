"""What the engine did in each of the last seconds: tokens, queue, blocks in use."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, replace


@dataclass(slots=True)
class Second:
    """One second of the engine's clock. Queue and blocks are those at its end."""

    second: int
    output_tokens: int = 0
    prompt_tokens: int = 0  # computed: hits are not among them
    waiting: int = 0
    used_blocks: int = 0


class EngineHistory:
    """The last `span` seconds in which something happened."""

    def __init__(self, span: int = 600) -> None:
        self.span = span
        self._seconds: deque[Second] = deque()

    def at(self, time: float) -> Second:
        """The second to count into; queue and blocks go on from the one before."""
        second = math.floor(time)
        if not self._seconds:
            self._seconds.append(Second(second))
        last = self._seconds[-1]
        if second <= last.second:  # a straggler counts with the newest
            return last
        self._seconds.append(replace(last, second=second, output_tokens=0, prompt_tokens=0))
        # One that is older than the span says what the queue was when the span began.
        while len(self._seconds) > 1 and self._seconds[1].second <= second - self.span:
            self._seconds.popleft()
        return self._seconds[-1]

    def seconds(self, now: float, window: int) -> list[Second]:
        """The last `window` seconds, the oldest first, without gaps."""
        first = math.floor(now) - window + 1
        filled = [Second(second) for second in range(first, first + window)]
        before = Second(first - 1)
        known = {}
        for item in self._seconds:
            if item.second < first:
                before = item
            else:
                known[item.second] = item
        for index, item in enumerate(filled):
            before = known.get(item.second, replace(before, second=item.second, output_tokens=0, prompt_tokens=0))
            filled[index] = before
        return filled

    def rates(self, now: float, window: int = 5) -> tuple[float, float]:
        """Output tokens and computed prompt tokens a second over the last `window` full seconds."""
        full = self.seconds(now - 1, window)
        return (
            sum(item.output_tokens for item in full) / window,
            sum(item.prompt_tokens for item in full) / window,
        )

    def clear(self) -> None:
        self._seconds.clear()
