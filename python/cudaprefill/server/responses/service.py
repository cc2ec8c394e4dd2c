"""Runs responses: from a request to the engine, and from its tokens to events. HTTP and websockets share it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncGenerator
from typing import Any

from starlette.requests import HTTPConnection

from cudaprefill.engine.output_delta import OutputDelta
from cudaprefill.engine.request_stream import AsyncRequestStream
from cudaprefill.errors import SlowReaderError
from cudaprefill.protocol.responses import Response, ResponseBody, ResponseEvent
from cudaprefill.sampling_params import SamplingParams, StructuredOutputsParams
from cudaprefill.server.errors import ApiError
from cudaprefill.server.model_list import require_model
from cudaprefill.server.responses.conversation import Turn, take_turn
from cudaprefill.server.responses.errors import response_error
from cudaprefill.server.responses.events import EventSequence, new_response, usage_of
from cudaprefill.server.responses.store import ResponseStore, StoredTurn, find_turn
from cudaprefill.server.state import ServerState

# Of ResponseBody, under the names that SamplingParams has for them.
SAMPLING_FIELDS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "min_tokens",
)


class ResponsesService:
    """The responses of one server: those that run, and those that are kept."""

    def __init__(self, state: ServerState) -> None:
        self.state = state
        self.running: dict[str, RunningResponse] = {}
        self.store = ResponseStore(state.config.max_stored_responses, state.config.max_stored_response_bytes)

    @classmethod
    def of(cls, connection: HTTPConnection) -> ResponsesService:
        """The one of the application that `connection` came to."""
        shared = connection.app.state
        if not hasattr(shared, "responses"):
            shared.responses = cls(shared.server)
        service: ResponsesService = shared.responses
        return service

    def start(
        self,
        body: ResponseBody,
        size: int,
        arrival_time: float,
        stream_id: str | None = None,
        session_store: ResponseStore | None = None,
    ) -> RunningResponse:
        """Raises ApiError. The caller must `close` what it gets.

        size: of the message that asked for it, in bytes.
        arrival_time: when that was received, seconds of time.monotonic().
        session_store: keeps what is not to be kept for everybody (`store: false`), for as long as a connection lasts.
        """
        model = require_model(self.state, body.model)
        response = new_response(body, model.name)
        return RunningResponse(self, body, size, arrival_time, response, model.adapter, stream_id, session_store)

    def find(self, response_id: str, session_store: ResponseStore | None) -> StoredTurn:
        """Raises ApiError with OpenAI's code for a turn that cannot be gone on from."""
        stores = [self.store] if session_store is None else [session_store, self.store]
        turn = find_turn(response_id, stores)
        if turn is None:
            reason = "is still running" if response_id in self.running else "is not found"
            raise ApiError(
                400,
                f"the previous response {response_id!r} {reason}",
                param="previous_response_id",
                code="previous_response_not_found",
            )
        return turn


class RunningResponse:
    """One response on its way, from the moment its request came in.

    id: the engine's request id too.
    error: what made it fail.
    ended: no event follows.
    """

    def __init__(
        self,
        service: ResponsesService,
        body: ResponseBody,
        size: int,
        arrival_time: float,
        response: Response,
        adapter: str | None,
        stream_id: str | None,
        session_store: ResponseStore | None,
    ) -> None:
        self.id = response.id
        self._service = service
        self._body = body
        self._adapter = adapter
        self._session_store = session_store
        self._executor = service.state.executor_for(size)
        self.error: Exception | None = None
        self.ended = asyncio.Event()
        self._arrival_time = arrival_time
        self._sequence = EventSequence(response, stream_id)
        self._stream: AsyncRequestStream | None = None
        self._cancelled = False
        self._admission = contextlib.ExitStack()
        self._admission.enter_context(service.state.admit())
        service.running[self.id] = self

    @property
    def response(self) -> Response:
        """As the latest event told it."""
        return self._sequence.response

    def cancel(self) -> None:
        """The events go on to the last one, which says "cancelled". Harmless when it has ended."""
        self._cancelled = True
        if self._stream is not None:
            self._stream.abort()

    def close(self) -> None:
        """Ends the work, wherever it is; whoever started the response calls it when no more events are wanted."""
        self.cancel()
        self._service.running.pop(self.id, None)
        self._admission.close()
        self.ended.set()

    async def events(
        self, *, until_admitted: bool = False, streamed: bool = True
    ) -> AsyncGenerator[ResponseEvent, None]:
        """Raises ValueError, ApiError or EngineDeadError before the first event, never later.

        until_admitted: begin when the engine has taken the request, which may be a step later, and raise
            QueueFullError where it does not. Else what the engine refuses is a response that failed.
        streamed: each event is written to the client before the next one is asked for.
        """
        turn, stream = await self._submit()
        deltas = stream.merged(self._service.state.config.max_unread_output)
        first = asyncio.ensure_future(anext(deltas, None))
        first.add_done_callback(_retrieve)  # nobody may be there any more to hear of its error
        try:
            if until_admitted:
                await self._until_admitted(first)
            for event in self._sequence.begin():
                yield event
            delta = await first
            while delta is not None:
                if self._body.generate is not False:
                    is_first = not self._sequence.has_tokens
                    for event in self._sequence.add(delta, self._body.top_logprobs):
                        yield event
                    if is_first and streamed:
                        self._service.state.on_first_sent(self.id)
                delta = await anext(deltas, None)
            self._service.state.raise_for_abort(stream.output.outputs[0].finish_reason)
            last = self._end(turn, stream)
        except Exception as error:
            if self._sequence.begun:
                last = self._fail(error)
            else:
                raise
        finally:
            first.cancel()
        for event in last:
            yield event

    async def _submit(self) -> tuple[Turn, AsyncRequestStream]:
        engine = self._service.state.engine
        previous_id = self._body.previous_response_id
        previous = None if previous_id is None else self._service.find(previous_id, self._session_store)
        in_thread = functools.partial(asyncio.get_running_loop().run_in_executor, self._executor)
        turn = await in_thread(take_turn, engine.tokenizer, self._body, previous)
        self._stream = await engine.generate(
            turn.prompt_token_ids,
            await in_thread(_sampling_params, self._body),
            request_id=self.id,
            priority=self._body.priority or 0,
            cache_salt=self._body.cache_salt,
            adapter=self._adapter,
            arrival_time=self._arrival_time,
            executor=self._executor,
        )
        if self._cancelled:
            self._stream.abort()
        return turn, self._stream

    async def _until_admitted(self, first: asyncio.Future[OutputDelta | None]) -> None:
        """Until the engine has taken the request into its queue. Raises why it has not."""
        # The engine handles what it is told in order, and a refusal travels ahead of this answer.
        admitted = asyncio.ensure_future(self._service.state.engine.call(lambda engine: None))
        admitted.add_done_callback(_retrieve)
        try:
            done, _ = await asyncio.wait((first, admitted), return_when=asyncio.FIRST_COMPLETED)
        finally:
            admitted.cancel()
        for each in done:
            each.result()

    def _end(self, turn: Turn, stream: AsyncRequestStream) -> list[ResponseEvent]:
        output, prepared = stream.output.outputs[0], self._body.generate is False
        metrics = stream.output.metrics
        usage = usage_of(len(turn.prompt_token_ids), 0 if prepared else len(output.token_ids), metrics)
        aborted = output.finish_reason == "abort"
        events = self._sequence.end(None if prepared and not aborted else output.finish_reason, usage, metrics)
        keep = self._session_store if self._body.store is False else self._service.store
        if keep is not None:
            # Kept before the last event goes out: the next turn may come on its heels.
            keep.add(
                turn.prepared(self.response)
                if prepared
                else turn.answered(self.response, output.token_ids, output.stop_reason)
            )
        return events

    def _fail(self, error: Exception) -> list[ResponseEvent]:
        self.error = error
        if isinstance(error, SlowReaderError):
            return self._sequence.fail("slow_reader", str(error))
        told = response_error(error)
        return self._sequence.fail(
            told.code or ("invalid_prompt" if told.status == 400 else "server_error"), told.message
        )


def _retrieve(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()


def _sampling_params(body: ResponseBody) -> SamplingParams:
    """Raises ValueError that begins with the name of the field."""
    if body.generate is False:
        return SamplingParams(temperature=0, max_tokens=1, detokenize=False)
    given = {name: getattr(body, name) for name in SAMPLING_FIELDS if getattr(body, name) is not None}
    return SamplingParams(
        **given,
        max_tokens=body.max_output_tokens,
        logprobs=body.top_logprobs,
        structured_outputs=_structured_outputs(body),
    )


def _structured_outputs(body: ResponseBody) -> StructuredOutputsParams | None:
    if body.text is None or body.text.format.type == "text":
        return None
    if body.text.format.type == "json_object":
        return StructuredOutputsParams(json_object=True)
    return StructuredOutputsParams(json=body.text.format.schema)
