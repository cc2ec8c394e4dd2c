"""Messages of `/v1/telemetry`: the engine's inside, as a snapshot and then differences.

All times are seconds of the engine's clock; `TelemetrySnapshot.unix_time` says what its `time` is on the wall.
A request is named by its `number`, a small integer that the engine never gives twice; its id comes once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from cudaprefill.protocol.account import Account
from cudaprefill.protocol.itl_target import ItlTarget

Topic = Literal["step", "request", "blocks"]
RequestState = Literal["waiting", "prefilling", "decoding", "finished"]
RequestEventKind = Literal["arrived", "queued", "scheduled", "chunk", "first_token", "preempted", "finished"]

# One character a block, in snapshots and changes alike; in capitals where a block holds virtual tokens.
FREE, ACTIVE, SHARED, CACHED = ".", "a", "s", "c"
EVICTED = "x"  # in changes only: was cached, was just taken for something else or forgotten


def of_virtual_tokens(letters: str) -> str:
    """The letters of such blocks."""
    return letters.upper()


MIN_RATE, MAX_RATE = 0.2, 60.0  # updates a second
DEFAULT_RATE = 10.0
DEFAULT_ITL_LIMIT_MS = 100.0

# --- What a client sends ---
#
# Each may carry a `command_id`. What answers it carries the same, and a command without an answer of its own is then
# answered by a TelemetryDone: so a client knows which of its commands failed.


@dataclass(kw_only=True)
class TelemetrySubscribe:
    """Starts, or restarts with other wishes: a snapshot follows.

    rate: updates a second, at most; without news there is no update.
    owners: also say which blocks each request's table names.
    """

    type: Literal["telemetry.subscribe"] = "telemetry.subscribe"
    events: list[Topic] = field(default_factory=lambda: ["step", "request", "blocks"])
    rate: float = DEFAULT_RATE
    owners: bool = False
    command_id: int | None = None


@dataclass(kw_only=True)
class TelemetryDescribeBlock:
    """Asks for all that is known of one block; answered by a TelemetryBlock."""

    type: Literal["telemetry.describe_block"] = "telemetry.describe_block"
    block: int
    command_id: int | None = None


@dataclass(kw_only=True)
class TelemetryExplain:
    """Asks where the time of a request went that runs or is among the last that ran; a TelemetryAccount follows.

    itl_limit_ms: a longer gap between two tokens is late.
    """

    type: Literal["telemetry.explain"] = "telemetry.explain"
    id: str
    itl_limit_ms: float = DEFAULT_ITL_LIMIT_MS
    command_id: int | None = None


@dataclass(kw_only=True)
class TelemetryChangeSettings:
    """Changes the live settings that are given; every subscriber's next update has them all."""

    type: Literal["telemetry.change_settings"] = "telemetry.change_settings"
    max_num_batched_tokens: int | None = None
    long_prefill_token_threshold: int | None = None
    itl_target_ms: ItlTarget | None = None  # 0 takes the target away
    command_id: int | None = None


@dataclass(kw_only=True)
class TelemetryAbort:
    """Ends a request wherever it is; an id that is unknown or finished is answered by an error."""

    type: Literal["telemetry.abort"] = "telemetry.abort"
    id: str
    command_id: int | None = None


@dataclass(kw_only=True)
class TelemetryResetPrefixCache:
    """Forgets all cached prefixes."""

    type: Literal["telemetry.reset_prefix_cache"] = "telemetry.reset_prefix_cache"
    command_id: int | None = None


# --- What the server sends ---


@dataclass(kw_only=True)
class EngineDescription:
    """What does not change while the engine runs."""

    model: str
    family: str
    num_parameters: int
    dtype: str
    kv_cache_dtype: str = "unknown"  # of a recording that is older than this field
    device: str
    kernels: str
    threads: int
    max_model_len: int
    block_size: int
    num_blocks: int
    block_bytes: int
    max_num_seqs: int
    enable_prefix_caching: bool
    version: str  # of cudaprefill


@dataclass(kw_only=True)
class EngineSettings:
    """What `POST /v1/engine` changes while the engine runs."""

    max_num_batched_tokens: int  # the token budget
    long_prefill_token_threshold: int  # the chunk cap of one request while others wait; 0: automatic
    itl_target_ms: ItlTarget | None = None  # None: no target


@dataclass(kw_only=True)
class PoolTotals:
    """free + cached + used == num_blocks; shared ones are among the used."""

    free: int
    cached: int
    used: int
    taken: int  # ever, as the next two
    freed: int
    evicted: int
    # Tokens whose KV the used blocks hold, shared ones counted once: what is left is waste. None: it is not known.
    used_tokens: int | None = None


@dataclass(kw_only=True)
class RequestRecord:
    """One request as it stands."""

    number: int
    id: str
    state: RequestState
    priority: int
    arrived: float
    prompt_tokens: int  # virtual ones among them
    virtual_tokens: int | None = None  # the first of these, if there are any
    adapter: str | None = None
    max_tokens: int | None = None
    hit_tokens: int = 0  # of the prompt, found in the prefix index
    computed_tokens: int = 0  # of the prefill that is under way, hits included
    output_tokens: int = 0
    preemptions: int = 0
    num_chunks: int = 0
    first_scheduled: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    finished: float | None = None
    finish_reason: str | None = None  # "stop", "length", "abort" or "error"


@dataclass(kw_only=True)
class RequestChange:
    """One station of one request: the engine's RequestEvent on the wire. A kind leaves out what it does not name."""

    kind: RequestEventKind
    number: int
    time: float
    step: int  # the step in which, or after which, it happened
    id: str | None = None  # arrived
    priority: int | None = None  # arrived
    prompt_tokens: int | None = None  # arrived
    virtual_tokens: int | None = None  # arrived
    adapter: str | None = None  # arrived
    max_tokens: int | None = None  # arrived
    tokenized: float | None = None  # queued: when its prompt was tokens, in seconds
    start: int | None = None  # chunk: the first token
    length: int | None = None  # chunk
    hit_tokens: int | None = None  # scheduled
    output_tokens: int | None = None  # finished
    reason: str | None = None  # finished


@dataclass(kw_only=True)
class StepRecord:
    """One step. Decodes rarely change from step to step, so each says who joined and who left since the last one sent.

    After a snapshot the set of decodes is empty.
    """

    number: int
    start: float
    duration: float
    token_budget: int
    num_decodes: int
    joined: list[int]  # requests that decode in this step and did not in the one sent before
    left: list[int]
    chunks: list[tuple[int, int, int, int]]  # request, start, length, hit tokens
    preempted: list[int]
    num_waiting: int
    waiting_for: str  # what the head of the queue lacked: "budget", "seats: ...", "blocks: ...", or ""
    blocks_taken: int
    blocks_freed: int
    blocks_evicted: int


@dataclass(kw_only=True)
class TelemetrySnapshot:
    """Everything as it stands; what was known before is void. Sections that were not asked for are None.

    reason: "subscribed"; "dropped": the reader was too slow, and differences were lost; "condensed": the differences
        would have been longer than the whole; "restarted": a new engine.
    """

    type: Literal["telemetry.snapshot"] = "telemetry.snapshot"
    sequence_number: int
    reason: Literal["subscribed", "dropped", "condensed", "restarted"]
    time: float
    unix_time: float
    engine: EngineDescription
    settings: EngineSettings
    step: int  # the last one that ended
    pool: PoolTotals
    requests: list[RequestRecord] | None = None  # waiting and running
    blocks: str | None = None  # a character a block
    owners: dict[str, list[int]] | None = None  # request number -> its block table


@dataclass(kw_only=True)
class TelemetryUpdate:
    """What happened since the message before, in order."""

    type: Literal["telemetry.update"] = "telemetry.update"
    sequence_number: int
    time: float
    steps: list[StepRecord] | None = None
    requests: list[RequestChange] | None = None
    blocks: list[tuple[int, str]] | None = None  # block, its state now, or EVICTED followed by its state now
    owners: dict[str, tuple[int, list[int]]] | None = None  # request number -> from this place on, its block table is
    pool: PoolTotals | None = None
    settings: EngineSettings | None = None
    dropped_steps: int = 0  # steps that the reader was too slow for, before those in this message
    # With dropped steps: all that wait or run, as they stand after this message. Counting tokens would be short.
    records: list[RequestRecord] | None = None


@dataclass(kw_only=True)
class TelemetryBlock:
    """All that is known of one block."""

    type: Literal["telemetry.block"] = "telemetry.block"
    sequence_number: int
    block: int
    state: str
    reference_count: int
    owners: list[str]  # request ids
    age: int  # steps since it was last used
    token_ids: list[int]  # of text
    text: str
    virtual_tokens: int | None = None  # before them in the block
    adapter: str | None = None  # whose prefix the block continues
    hash: str | None = None  # of a published block
    command_id: int | None = None


@dataclass(kw_only=True)
class TelemetryAccount:
    """Where the time of a request went; the same as `GET /v1/requests/{id}/explain` tells."""

    type: Literal["telemetry.account"] = "telemetry.account"
    sequence_number: int
    account: Account
    command_id: int | None = None


@dataclass(kw_only=True)
class TelemetryDone:
    """A command with a `command_id` was carried out."""

    type: Literal["telemetry.done"] = "telemetry.done"
    sequence_number: int
    command_id: int


@dataclass(kw_only=True)
class TelemetryError:
    """What a client sent was not understood, or cannot be done; the connection goes on."""

    type: Literal["error"] = "error"
    sequence_number: int
    code: str
    message: str
    param: str | None = None
    command_id: int | None = None


ClientMessage = (
    TelemetrySubscribe
    | TelemetryDescribeBlock
    | TelemetryExplain
    | TelemetryChangeSettings
    | TelemetryAbort
    | TelemetryResetPrefixCache
)
ServerMessage = TelemetrySnapshot | TelemetryUpdate | TelemetryBlock | TelemetryAccount | TelemetryDone | TelemetryError

CLIENT_MESSAGES: dict[str, type[ClientMessage]] = {
    "telemetry.subscribe": TelemetrySubscribe,
    "telemetry.describe_block": TelemetryDescribeBlock,
    "telemetry.explain": TelemetryExplain,
    "telemetry.change_settings": TelemetryChangeSettings,
    "telemetry.abort": TelemetryAbort,
    "telemetry.reset_prefix_cache": TelemetryResetPrefixCache,
}
SERVER_MESSAGES: dict[str, type[ServerMessage]] = {
    "telemetry.snapshot": TelemetrySnapshot,
    "telemetry.update": TelemetryUpdate,
    "telemetry.block": TelemetryBlock,
    "telemetry.account": TelemetryAccount,
    "telemetry.done": TelemetryDone,
    "error": TelemetryError,
}
