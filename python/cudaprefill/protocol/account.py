"""What an account of a request says, over HTTP and telemetry. Times are seconds; `start` counts from the arrival."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal

from cudaprefill.protocol.itl_target import ItlTarget

PartKind = Literal[
    "tokenizing",  # from its first byte until the prompt was tokens; on a websocket, its turn too
    "handing over",  # until the engine took it, between two steps
    "queued",  # until it was admitted; once for each reason
    "preempted",  # as queued, but after its blocks were taken away
    "chunk",  # a step that computed a part of its prompt
    "left out",  # a step during its prefill that computed nothing of it
    "between steps",  # during its prefill
    "delivering",  # from the token to the end of its step: commit, text of all outputs
    "sending",  # from there until the server had written it to its client
]


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a request had computed."""

    id: str
    tokens: int


@dataclass(frozen=True, kw_only=True)
class Part:
    """A stretch of a request's time."""

    kind: PartKind
    start: float
    duration: float
    first_step: int | None = None
    last_step: int | None = None
    first_token: int | None = None  # chunk: which tokens of the prompt
    num_tokens: int = 0  # chunk
    num_decodes: int = 0  # tokens of others that these steps computed, one each
    others: list[Work] = field(default_factory=list)  # whose chunks these steps computed besides, most tokens first
    others_seconds: float | None = None  # how much of a chunk's step was other requests' work
    waiting_for: str = ""  # queued: what the head of the queue lacked
    behind: list[str] = field(default_factory=list)  # queued: who stood before it, the head first


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Where a prompt parts from the nearest one that is known."""

    id: str  # of the nearest request
    position: int  # of the first token that differs
    own_token: int | None = None  # None: it ends here
    other_token: int | None = None


@dataclass(frozen=True, kw_only=True)
class PrefixAccount:
    """What the prefix cache gave at the first admission, and why not more.

    reason: "complete": all that can be shared was; "off"; "different": no known request has the next block;
    "salt": the tokens are known, but under another cache salt; "adapter": the text is known, but behind another adapter
    or none; "evicted"; "computing": another request had it in the
    making; "forgotten": it was there, and is gone without an eviction, as after a reset; "unknown": not recorded.
    """

    hit_tokens: int
    virtual_hit_tokens: int = 0  # of these
    adapter: str | None = None  # whose blocks these are
    shareable_tokens: int  # full blocks, at least one token is always computed
    reason: Literal["complete", "off", "different", "salt", "adapter", "evicted", "computing", "forgotten", "unknown"]
    missed_block: int | None = None  # the first block of the prompt that was not found
    known_from: str | None = None  # the request that had the missed block computed
    difference: Difference | None = None
    evicted_in_step: int | None = None
    evicted_by: list[Work] = field(default_factory=list)  # who took blocks in that step


@dataclass(frozen=True, kw_only=True)
class Prevention:
    """A setting with which the cost model gives the late step's work within the limit."""

    setting: str  # as a flag
    value: float
    predicted: float  # seconds of the step
    text: str


@dataclass(frozen=True, kw_only=True)
class LateToken:
    """A gap between two tokens above the limit."""

    token: int  # of the output, counting from 0
    time: float  # since the arrival
    gap: float
    steps: list[int]  # between the two tokens
    slowest_step: int | None = None
    slowest_duration: float
    outside_steps: float  # of the gap
    preempted: bool
    num_decodes: int  # of the slowest step
    others: list[Work]  # whose chunks that step computed
    preventions: list[Prevention]


@dataclass(frozen=True, kw_only=True)
class Account:
    """`parts` are in order and leave nothing out: they add up to `total`."""

    id: str
    number: int
    state: Literal["waiting", "prefilling", "decoding", "finished"]
    finish_reason: str | None = None
    prompt_tokens: int  # virtual ones among them
    virtual_tokens: int = 0
    adapter: str | None = None
    output_tokens: int  # so far
    preemptions: int
    ttft: float | None = None  # arrival to first token; None while there is none
    total: float  # arrival to the end of the last part
    parts: list[Part]
    prefix: PrefixAccount | None = None  # None before it was admitted
    itl_limit: float | None = None
    itl_target_ms: ItlTarget | None = None  # the engine's, None: none, or it is not known
    late_tokens: list[LateToken]
    num_late_tokens: int  # `late_tokens` has the latest of them, at most a few
    incomplete: bool  # steps of its time are no longer known

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return dataclasses.asdict(self)
