"""A client of OpenAI's completions endpoint that keeps the time of every event."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import httpx

PATIENCE = 600.0  # seconds without a byte


@dataclass
class Stream:
    """What came of one request. Times are seconds of `time.perf_counter`, at which the read of an event returned."""

    sent: float = 0.0
    events: list[tuple[float, int]] = field(default_factory=list)  # (time, tokens so far) of each that brought tokens

    @property
    def num_tokens(self) -> int:
        return self.events[-1][1] if self.events else 0

    @property
    def first(self) -> float:
        """When the first token came."""
        return self.events[0][0]

    @property
    def ttft(self) -> float:
        """Seconds from the sending of the request to its first token."""
        return self.first - self.sent

    @property
    def mean_itl(self) -> float:
        """Seconds between two tokens on average, however they were put into events; 0.0 if all came at once."""
        later_tokens = self.num_tokens - self.events[0][1]
        return (self.events[-1][0] - self.first) / later_tokens if later_tokens else 0.0

    def gaps(self, begin: float, end: float) -> list[float]:
        """Seconds between events, of all gaps that touch the span from `begin` to `end`."""
        times = [time for time, _ in self.events]
        return [after - before for before, after in itertools.pairwise(times) if after > begin and before < end]


class Client:
    """`async with Client(url) as client: stream = await client.complete(token_ids, 64)`."""

    def __init__(self, url: str) -> None:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)  # servers are frozen between rounds
        self._http = httpx.AsyncClient(base_url=url, timeout=PATIENCE, limits=limits)
        self._model = ""

    async def __aenter__(self) -> Client:
        self._model = (await self._http.get("/v1/models")).raise_for_status().json()["data"][0]["id"]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def complete(self, prompt: Sequence[int], max_tokens: int, stream: Stream | None = None) -> Stream:
        """Continues token ids greedily for `max_tokens` tokens, whatever these are.

        `stream` is filled as events come, for those who look at it before the end or cancel this.
        Raises RuntimeError if the server counts other tokens than were sent and asked for, or does not count while it
        streams, or sends what is no event.
        """
        body = {
            "model": self._model,
            "prompt": list(prompt),
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }
        stream = Stream() if stream is None else stream
        stream.sent = time.perf_counter()
        usage: dict[str, Any] = {}
        async with self._http.stream("POST", "/v1/completions", json=body) as response:
            if response.is_error:
                raise RuntimeError(f"the server answers {response.status_code}: {(await response.aread())[:500]!r}")
            async for line in response.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                now, event = time.perf_counter(), _event(line[len("data: ") :])
                if "error" in event:
                    raise RuntimeError(f"the server ends a stream with {event['error']}")
                usage = event.get("usage") or usage
                if event.get("choices") and usage.get("completion_tokens", 0) > stream.num_tokens:
                    stream.events.append((now, usage["completion_tokens"]))
        counted = (usage.get("prompt_tokens"), usage.get("completion_tokens"))
        if counted != (len(prompt), max_tokens):
            raise RuntimeError(
                f"{len(prompt)} tokens were sent and {max_tokens} asked for; the server counts {counted[0]} and "
                f"{counted[1]}"
            )
        if stream.num_tokens != max_tokens:
            raise RuntimeError(f"of {max_tokens} tokens the server counted {stream.num_tokens} while it streamed")
        return stream


def _event(text: str) -> dict[str, Any]:
    """Raises RuntimeError for what an engine leaves that dies in the middle of a line."""
    try:
        event: dict[str, Any] = json.loads(text)
    except ValueError as error:
        raise RuntimeError(f"the server sends what is no event, {text[:100]!r}: {error}") from None
    return event
