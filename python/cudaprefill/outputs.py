"""What a caller gets back, in the shape of vLLM's outputs."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Logprob:
    """A token's natural log-probability, of the model's own logits: before penalties, biases and temperature."""

    logprob: float
    rank: int  # 1 is the most likely token
    decoded_token: str | None = None


# The token itself (sampled, or of the prompt) first, then the most likely ones, best first, as many as were asked for.
TokenLogprobs = dict[int, Logprob]


@dataclass(slots=True)
class CompletionOutput:
    """One of the n outputs of a request."""

    index: int
    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None = None  # one a token, when asked for
    finish_reason: str | None = None  # "stop", "length" or "abort" once finished
    stop_reason: int | str | None = None  # the stop token id or stop string that ended it; None for EOS

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass(slots=True)
class RequestMetrics:
    """Times of one request in seconds of one monotonic clock; None for what has not happened."""

    arrival_time: float
    first_scheduled_time: float | None = None
    first_token_time: float | None = None
    last_token_time: float | None = None
    finished_time: float | None = None
    num_cached_tokens: int = 0  # of the prompt's text, found in the prefix cache
    num_virtual_tokens: int = 0  # in front of the text, of an adapter or prompt_embeds
    num_cached_virtual_tokens: int = 0  # of these, found in the prefix cache
    itl: list[float] = field(default_factory=list)  # gaps between consecutive tokens

    def record_token(self, now: float) -> None:
        """A token left the engine at `now`."""
        if self.last_token_time is None:
            self.first_token_time = now
        else:
            self.itl.append(now - self.last_token_time)
        self.last_token_time = now

    @property
    def ttft(self) -> float | None:
        """From arrival to the first token, waiting included."""
        return None if self.first_token_time is None else self.first_token_time - self.arrival_time

    @property
    def queue_time(self) -> float | None:
        return None if self.first_scheduled_time is None else self.first_scheduled_time - self.arrival_time

    @property
    def mean_itl(self) -> float | None:
        """None with fewer than two tokens."""
        return sum(self.itl) / len(self.itl) if self.itl else None


@dataclass(slots=True)
class RequestOutput:
    """A request and its outputs so far; `finished` when no output will change any more."""

    request_id: str
    prompt: str | None  # None where token ids were given
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    metrics: RequestMetrics | None = None
    # When asked for: one for each token of the prompt, given those before it, so None for the first.
    prompt_logprobs: list[TokenLogprobs | None] | None = None
