"""From the engine's deltas to the events of one response, in OpenAI's order.

created, in_progress                                       the engine has taken the request
output_item.added, content_part.added                      its first token
output_text.delta ...                                      more text
output_text.done, content_part.done, output_item.done      its last token
completed | incomplete | failed                            always the last event
"""

from __future__ import annotations

import dataclasses
import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from cudaprefill.engine.output_delta import OutputDelta
from cudaprefill.outputs import Logprob, RequestMetrics, TokenLogprobs
from cudaprefill.protocol import responses as wire
from cudaprefill.server.logprob_fields import LEAST


class EventSequence:
    """Numbers the events of one response. `response` is the response as the last event told it."""

    def __init__(self, response: wire.Response, stream_id: str | None) -> None:
        self.response = response
        self._stream_id = stream_id
        self._item_id = f"msg_{uuid.uuid4().hex}"
        self._number = 0
        self._added = False
        self._text = ""
        self._logprobs: list[wire.TokenLogprob] = []

    @property
    def begun(self) -> bool:
        return self._number > 0

    @property
    def has_tokens(self) -> bool:
        return self._added

    def begin(self) -> list[wire.ResponseEvent]:
        return [
            wire.ResponseCreated(**self._head(), response=self.response),
            wire.ResponseInProgress(**self._head(), response=self.response),
        ]

    def add(self, delta: OutputDelta, top_logprobs: int | None) -> Iterator[wire.ResponseEvent]:
        """What `delta` adds, but for its end."""
        if not delta.token_ids:
            return
        if not self._added:
            self._added = True
            item = wire.OutputMessage(id=self._item_id, status="in_progress", content=[])
            yield wire.OutputItemAdded(**self._head(), item=item)
            yield wire.ContentPartAdded(**self._head(), item_id=self._item_id, part=wire.OutputText(text=""))
        logprobs = [] if top_logprobs is None else [_logprob(token, top_logprobs) for token in delta.logprobs or ()]
        if delta.text or logprobs:
            self._text += delta.text
            self._logprobs += logprobs
            yield wire.OutputTextDelta(**self._head(), item_id=self._item_id, delta=delta.text, logprobs=logprobs)

    def end(
        self, finish_reason: str | None, usage: wire.ResponseUsage, metrics: RequestMetrics | None
    ) -> list[wire.ResponseEvent]:
        """finish_reason: the engine's: "stop", "length" or "abort"; None for a prompt that was only prepared."""
        completed = finish_reason in ("stop", None)
        closing = self._close_item("completed" if completed else "incomplete")
        self.response = dataclasses.replace(
            self.response,
            status="completed" if completed else "cancelled" if finish_reason == "abort" else "incomplete",
            completed_at=_now() if completed else None,
            incomplete_details=None
            if completed
            else wire.IncompleteDetails(reason="cancelled" if finish_reason == "abort" else "max_output_tokens"),
            output=_items(closing),
            usage=usage,
            metrics=_metrics(metrics),
        )
        kind = wire.ResponseCompleted if completed else wire.ResponseIncomplete
        return [*closing, kind(**self._head(), response=self.response)]

    def fail(self, code: str, message: str) -> list[wire.ResponseEvent]:
        closing = self._close_item("incomplete")
        self.response = dataclasses.replace(
            self.response,
            status="failed",
            error=wire.ResponseError(code=code, message=message),
            output=_items(closing),
        )
        return [*closing, wire.ResponseFailed(**self._head(), response=self.response)]

    def _close_item(self, status: wire.ItemStatus) -> list[wire.ResponseEvent]:
        if not self._added:
            return []
        part = wire.OutputText(text=self._text, logprobs=self._logprobs)
        item = wire.OutputMessage(id=self._item_id, status=status, content=[part])
        return [
            wire.OutputTextDone(**self._head(), item_id=self._item_id, text=self._text, logprobs=self._logprobs),
            wire.ContentPartDone(**self._head(), item_id=self._item_id, part=part),
            wire.OutputItemDone(**self._head(), item=item),
        ]

    def _head(self) -> dict[str, Any]:
        self._number += 1
        return {"sequence_number": self._number - 1, "stream_id": self._stream_id}


def new_response(body: wire.ResponseBody, model: str) -> wire.Response:
    """As it is before anything has happened."""
    return wire.Response(
        id=f"resp_{uuid.uuid4().hex}",
        created_at=_now(),
        status="in_progress",
        model=model,
        instructions=body.instructions,
        previous_response_id=body.previous_response_id,
        max_output_tokens=body.max_output_tokens,
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        top_logprobs=body.top_logprobs,
        text=body.text or wire.TextConfig(),
        store=body.store is not False,
        metadata=body.metadata or {},
    )


def usage_of(num_prompt: int, num_output: int, metrics: RequestMetrics | None) -> wire.ResponseUsage:
    """All in tokens."""
    details = wire.InputTokensDetails(cached_tokens=0 if metrics is None else metrics.num_cached_tokens)
    if metrics is not None and metrics.num_virtual_tokens:
        details.virtual_tokens = metrics.num_virtual_tokens
        details.cached_virtual_tokens = metrics.num_cached_virtual_tokens
    return wire.ResponseUsage(
        input_tokens=num_prompt,
        input_tokens_details=details,
        output_tokens=num_output,
        total_tokens=num_prompt + num_output,
    )


def _now() -> int:
    return int(time.time())


def _items(events: Sequence[wire.ResponseEvent]) -> list[wire.OutputMessage]:
    return [event.item for event in events if isinstance(event, wire.OutputItemDone)]


def _metrics(metrics: RequestMetrics | None) -> wire.ResponseMetrics | None:
    if metrics is None:
        return None
    ttft, queue_time = metrics.ttft, metrics.queue_time
    return wire.ResponseMetrics(
        queue_time=queue_time,
        prefill_time=None if ttft is None or queue_time is None else ttft - queue_time,
        ttft=ttft,
        mean_itl=metrics.mean_itl,
        cached_tokens=metrics.num_cached_tokens,
    )


def _logprob(token: TokenLogprobs, num_top: int) -> wire.TokenLogprob:
    """The sampled token comes first in the engine's answer, and stands again among the best where it is one of them."""
    drawn, *_ = token.values()
    best = sorted(token.values(), key=lambda logprob: logprob.rank)[:num_top]
    text, logprob, encoded = _parts(drawn)
    tops = [wire.TopLogprob(token=text, logprob=logprob, bytes=encoded) for text, logprob, encoded in map(_parts, best)]
    return wire.TokenLogprob(token=text, logprob=logprob, bytes=encoded, top_logprobs=tops)


def _parts(logprob: Logprob) -> tuple[str, float, list[int]]:
    text = logprob.decoded_token or ""
    return text, max(logprob.logprob, LEAST), list(text.encode(errors="replace"))
