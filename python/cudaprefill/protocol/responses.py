"""Messages of `/v1/responses`: the part of OpenAI's Responses API that a text model can honour, and its websocket mode.

Field names, their meaning and the order of the events are OpenAI's; docs/protocol.md says where this server differs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Role = Literal["user", "assistant", "system", "developer"]
ResponseStatus = Literal["in_progress", "completed", "incomplete", "cancelled", "failed"]
ItemStatus = Literal["in_progress", "completed", "incomplete"]

# --- What a client sends ---


@dataclass(kw_only=True)
class InputText:
    """A piece of a message: what a user wrote, or what an earlier response said."""

    type: Literal["input_text", "output_text"]
    text: str


@dataclass(kw_only=True)
class InputMessage:
    """One message of a conversation. Ids and statuses of items that are sent back are ignored."""

    type: Literal["message"] = "message"
    role: Role
    content: str | list[InputText]


@dataclass(kw_only=True)
class TextFormat:
    """type "json_schema" needs `schema`; "json_object" is any JSON object; "text" is no constraint."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str | None = None
    schema: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None


@dataclass(kw_only=True)
class TextConfig:
    format: TextFormat = field(default_factory=TextFormat)
    verbosity: str | None = None


@dataclass(kw_only=True)
class ResponseBody:
    """What is asked for: the body of `POST /v1/responses`.

    input: a string is one user message.
    instructions: a system message in front of everything; those of an earlier response are not carried over.
    previous_response_id: goes on with the conversation of that response.
    max_output_tokens: None is as many as fit the model.
    generate: False only prepares: the prompt goes into the prefix cache, and the response has no output.
    stream: answer with events; a websocket always does.
    The fields from `seed` on are vLLM's.
    """

    model: str | None = None
    input: str | list[InputMessage] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: int | None = None
    text: TextConfig | None = None
    store: bool | None = None
    metadata: dict[str, str] | None = None
    generate: bool | None = None
    stream: bool | None = None

    seed: int | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    cache_salt: str | None = None
    priority: int | None = None
    chat_template_kwargs: dict[str, Any] | None = None


@dataclass(kw_only=True)
class ResponseCreate(ResponseBody):
    """Asks for a response over a websocket.

    stream_id: names the lane that carries the events; 1 to 256 of [A-Za-z0-9_.-].
    """

    type: Literal["response.create"] = "response.create"
    stream_id: str | None = None


@dataclass(kw_only=True)
class ResponseCancel:
    """Ends a response of this connection, named by its id or by its lane; its last event says status "cancelled"."""

    type: Literal["response.cancel"] = "response.cancel"
    response_id: str | None = None
    stream_id: str | None = None


# --- What the server sends ---


@dataclass(kw_only=True)
class TopLogprob:
    token: str
    logprob: float
    bytes: list[int]


@dataclass(kw_only=True)
class TokenLogprob:
    """The token that was drawn, and the most likely ones in its place, best first."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


@dataclass(kw_only=True)
class OutputText:
    type: Literal["output_text"] = "output_text"
    text: str
    annotations: list[Any] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)


@dataclass(kw_only=True)
class OutputMessage:
    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    status: ItemStatus
    content: list[OutputText]


@dataclass(kw_only=True)
class InputTokensDetails:
    cached_tokens: int  # of the prompt's text, found in the prefix cache
    cache_write_tokens: int = 0
    virtual_tokens: int | None = None  # our extension: in front of the prompt, of an adapter that has some
    cached_virtual_tokens: int | None = None  # of these, found in the prefix cache


@dataclass(kw_only=True)
class OutputTokensDetails:
    reasoning_tokens: int = 0


@dataclass(kw_only=True)
class ResponseUsage:
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails = field(default_factory=OutputTokensDetails)
    total_tokens: int


@dataclass(kw_only=True)
class ResponseMetrics:
    """Our extension: where the time went, in seconds; None for what did not happen.

    queue_time: from receipt until its first chunk was scheduled.
    prefill_time: from there to the first token.
    ttft: from receipt to the first token; the sum of the two.
    mean_itl: the mean gap between two tokens.
    """

    queue_time: float | None = None
    prefill_time: float | None = None
    ttft: float | None = None
    mean_itl: float | None = None
    cached_tokens: int = 0


@dataclass(kw_only=True)
class ResponseError:
    code: str
    message: str


@dataclass(kw_only=True)
class IncompleteDetails:
    reason: str  # "max_output_tokens" or "cancelled"


@dataclass(kw_only=True)
class Response:
    """A response as it stands; `output` is empty while nothing has come."""

    id: str
    object: Literal["response"] = "response"
    created_at: float  # seconds since 1970
    completed_at: float | None = None
    status: ResponseStatus
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    model: str
    instructions: str | None = None
    previous_response_id: str | None = None
    output: list[OutputMessage] = field(default_factory=list)
    usage: ResponseUsage | None = None
    max_output_tokens: int | None = None
    temperature: float
    top_p: float
    top_logprobs: int | None = None
    text: TextConfig = field(default_factory=TextConfig)
    store: bool
    metadata: dict[str, str] = field(default_factory=dict)
    parallel_tool_calls: bool = True
    tool_choice: str = "auto"
    tools: list[Any] = field(default_factory=list)
    truncation: str = "disabled"
    metrics: ResponseMetrics | None = None

    @property
    def output_text(self) -> str:
        """All that the model said."""
        return "".join(part.text for message in self.output for part in message.content)


@dataclass(kw_only=True)
class StreamEvent:
    """What all events of a response have in common.

    sequence_number: counts the events of one response, from 0.
    stream_id: of the request, where it had one.
    """

    type: str
    sequence_number: int
    stream_id: str | None = None


@dataclass(kw_only=True)
class ResponseCreated(StreamEvent):
    """The engine has taken the request."""

    type: Literal["response.created"] = "response.created"
    response: Response


@dataclass(kw_only=True)
class ResponseInProgress(StreamEvent):
    type: Literal["response.in_progress"] = "response.in_progress"
    response: Response


@dataclass(kw_only=True)
class OutputItemAdded(StreamEvent):
    """The first token is there."""

    type: Literal["response.output_item.added"] = "response.output_item.added"
    output_index: int = 0
    item: OutputMessage


@dataclass(kw_only=True)
class ContentPartAdded(StreamEvent):
    type: Literal["response.content_part.added"] = "response.content_part.added"
    item_id: str
    output_index: int = 0
    content_index: int = 0
    part: OutputText


@dataclass(kw_only=True)
class OutputTextDelta(StreamEvent):
    """More text; a slow reader gets what has gathered in one piece."""

    type: Literal["response.output_text.delta"] = "response.output_text.delta"
    item_id: str
    output_index: int = 0
    content_index: int = 0
    delta: str
    logprobs: list[TokenLogprob] = field(default_factory=list)


@dataclass(kw_only=True)
class OutputTextDone(StreamEvent):
    type: Literal["response.output_text.done"] = "response.output_text.done"
    item_id: str
    output_index: int = 0
    content_index: int = 0
    text: str
    logprobs: list[TokenLogprob] = field(default_factory=list)


@dataclass(kw_only=True)
class ContentPartDone(StreamEvent):
    type: Literal["response.content_part.done"] = "response.content_part.done"
    item_id: str
    output_index: int = 0
    content_index: int = 0
    part: OutputText


@dataclass(kw_only=True)
class OutputItemDone(StreamEvent):
    type: Literal["response.output_item.done"] = "response.output_item.done"
    output_index: int = 0
    item: OutputMessage


@dataclass(kw_only=True)
class ResponseCompleted(StreamEvent):
    """The model ended by itself, or a stop string ended it."""

    type: Literal["response.completed"] = "response.completed"
    response: Response


@dataclass(kw_only=True)
class ResponseIncomplete(StreamEvent):
    """Out of tokens (status "incomplete"), or cancelled (status "cancelled"); `incomplete_details` says which."""

    type: Literal["response.incomplete"] = "response.incomplete"
    response: Response


@dataclass(kw_only=True)
class ResponseFailed(StreamEvent):
    """`response.error` says why: "server_error", or "slow_reader" when too much text waited to be read."""

    type: Literal["response.failed"] = "response.failed"
    response: Response


@dataclass(kw_only=True)
class ErrorBody:
    type: str
    code: str | None = None
    message: str
    param: str | None = None


@dataclass(kw_only=True)
class ErrorEvent:
    """A message was refused; the connection and all its other responses go on.

    status: what the same fault is over HTTP.
    """

    type: Literal["error"] = "error"
    status: int
    error: ErrorBody
    stream_id: str | None = None


@dataclass(kw_only=True)
class ResponseDeleted:
    """The answer to `DELETE /v1/responses/{id}`."""

    id: str
    object: Literal["response.deleted"] = "response.deleted"
    deleted: bool = True


TerminalEvent = ResponseCompleted | ResponseIncomplete | ResponseFailed
ResponseEvent = (
    ResponseCreated
    | ResponseInProgress
    | OutputItemAdded
    | ContentPartAdded
    | OutputTextDelta
    | OutputTextDone
    | ContentPartDone
    | OutputItemDone
    | TerminalEvent
)
ClientMessage = ResponseCreate | ResponseCancel
ServerMessage = ResponseEvent | ErrorEvent

CLIENT_MESSAGES: dict[str, type[ClientMessage]] = {
    "response.create": ResponseCreate,
    "response.cancel": ResponseCancel,
}
SERVER_MESSAGES: dict[str, type[ServerMessage]] = {
    "response.created": ResponseCreated,
    "response.in_progress": ResponseInProgress,
    "response.output_item.added": OutputItemAdded,
    "response.content_part.added": ContentPartAdded,
    "response.output_text.delta": OutputTextDelta,
    "response.output_text.done": OutputTextDone,
    "response.content_part.done": ContentPartDone,
    "response.output_item.done": OutputItemDone,
    "response.completed": ResponseCompleted,
    "response.incomplete": ResponseIncomplete,
    "response.failed": ResponseFailed,
    "error": ErrorEvent,
}
