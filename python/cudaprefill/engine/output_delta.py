"""What one step added to one output of a request; the unit that travels from the engine to a client."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cudaprefill.outputs import RequestMetrics, TokenLogprobs

_TOKEN_BYTES = 8
_LOGPROB_BYTES = 100


@dataclass(slots=True)
class OutputDelta:
    """Text may lag behind the tokens: it is held while it could still become a stop string or is half a character."""

    request_id: str  # of the request as submitted, the same for all n outputs
    index: int  # which of the n outputs
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: list[TokenLogprobs] | None = None  # one a token, when asked for
    finish_reason: str | None = None  # "stop", "length", "abort" or "error"; set once, in the output's last delta
    stop_reason: int | str | None = None  # the stop token id or stop string that ended it
    request_finished: bool = False  # no delta of any output follows
    error: Exception | None = None  # why the request failed
    metrics: RequestMetrics | None = None  # with an output's first and last delta
    # With the first delta of output 0, when asked for: one for each token of the prompt, None for the first.
    prompt_logprobs: list[TokenLogprobs | None] | None = None

    @property
    def size(self) -> int:
        """About how many bytes of memory its tokens, text and log-probabilities take."""
        size = len(self.text) + _TOKEN_BYTES * len(self.token_ids)
        if self.logprobs is not None:
            size += _LOGPROB_BYTES * sum(map(len, self.logprobs))
        if self.prompt_logprobs is not None:
            size += _LOGPROB_BYTES * sum(len(of_token or ()) for of_token in self.prompt_logprobs)
        return size

    @classmethod
    def merged(cls, deltas: Sequence[OutputDelta]) -> OutputDelta:
        """What successive deltas of one output amount to."""
        first, last = deltas[0], deltas[-1]
        logprobs = [of_token for delta in deltas for of_token in delta.logprobs or ()]
        return replace(
            first,
            token_ids=[token_id for delta in deltas for token_id in delta.token_ids],
            text="".join(delta.text for delta in deltas),
            logprobs=logprobs or first.logprobs,
            finish_reason=last.finish_reason,
            stop_reason=last.stop_reason,
            request_finished=last.request_finished,
            metrics=next((delta.metrics for delta in deltas if delta.metrics is not None), None),
        )

    @classmethod
    def failed(cls, request_id: str, error: Exception) -> OutputDelta:
        """The only delta of a request that was refused, or the last one of a request that failed as a whole."""
        return cls(request_id, 0, finish_reason="error", request_finished=True, error=error)
