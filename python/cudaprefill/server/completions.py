"""`POST /v1/completions`."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator

from pydantic import Field
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from cudaprefill.engine.request_stream import AsyncRequestStream
from cudaprefill.outputs import CompletionOutput, RequestOutput
from cudaprefill.sampling_params import SamplingParams
from cudaprefill.server.endpoint import Call, json_endpoint
from cudaprefill.server.generation import Generation, PromptDelta, Submission
from cudaprefill.server.logprob_fields import CompletionLogprobs
from cudaprefill.server.model_list import require_model
from cudaprefill.server.prompts import Prompts
from cudaprefill.server.sampling_fields import SamplingFields
from cudaprefill.server.sse import EventStream
from cudaprefill.server.state import ServerState
from cudaprefill.server.usage import usage


class CompletionRequest(SamplingFields):
    prompt: Prompts
    echo: bool = Field(False, description="begin the text with the prompt")
    logprobs: int | None = Field(None, description="most likely tokens to tell beside each one")
    best_of: int | None = Field(None, description="only as n")
    suffix: str | None = Field(None, description="only empty: text is not inserted")

    def params(self) -> SamplingParams:
        """Raises ValueError that begins with the name of the field that is wrong."""
        if self.suffix:
            raise ValueError("suffix must be empty: this server does not insert text")
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise ValueError(f"best_of must be as n, which is {self.n or 1}, got {self.best_of}")
        return self.sampling_params(logprobs=self.logprobs)


class CompletionAnswer:
    """Writes the answer to one request, whole or in events. Choices of the first prompt come first."""

    def __init__(self, fields: CompletionRequest, params: SamplingParams, head: dict[str, object]) -> None:
        self._fields = fields
        self._n = params.n
        self._head = head

    def whole(self, outputs: list[RequestOutput], echoes: list[str]) -> dict[str, object]:
        choices = [
            self._choice(place, each, echo)
            for place, (output, echo) in enumerate(zip(outputs, echoes, strict=True))
            for each in output.outputs
        ]
        return {**self._head, "choices": choices, "usage": usage(outputs)}

    def _choice(self, place: int, output: CompletionOutput, echo: str) -> dict[str, object]:
        logprobs = None
        if output.logprobs is not None:
            logprobs = CompletionLogprobs(self._fields.logprobs or 0, len(echo)).take(output.logprobs)
        return {
            "index": place * self._n + output.index,
            "text": echo + output.text,
            "logprobs": logprobs,
            "finish_reason": output.finish_reason,
            "stop_reason": output.stop_reason,
        }

    async def events(
        self, generation: Generation, deltas: AsyncIterator[PromptDelta], echoes: list[str]
    ) -> AsyncIterator[bytes]:
        """One event a delta; an echo comes with the first text, so that the first event carries a token."""
        begin = f"data: {json.dumps(self._head)[:-1]}, "
        writers: dict[int, CompletionLogprobs] = {}
        started: set[int] = set()
        continuous = self._fields.continuous_usage
        no_usage = ', "usage": null' if self._fields.include_usage else ""
        async for place, delta in deltas:
            index = place * self._n + delta.index
            echo = "" if index in started else echoes[place]
            started.add(index)
            logprobs = "null"
            if delta.logprobs is not None:
                writer = writers.setdefault(index, CompletionLogprobs(self._fields.logprobs or 0, len(echo)))
                logprobs = json.dumps(writer.take(delta.logprobs))
            end = "null"
            if delta.finish_reason is not None:
                end = f'{json.dumps(delta.finish_reason)}, "stop_reason": {json.dumps(delta.stop_reason)}'
            used = f', "usage": {json.dumps(usage(generation.outputs))}' if continuous else no_usage
            yield (
                f'{begin}"choices": [{{"index": {index}, "text": {json.dumps(echo + delta.text)}, '
                f'"logprobs": {logprobs}, "finish_reason": {end}}}]{used}}}\n\n'
            ).encode()
        if self._fields.include_usage:
            yield f'{begin}"choices": [], "usage": {json.dumps(usage(generation.outputs))}}}\n\n'.encode()


async def create_completion(call: Call[CompletionRequest]) -> Response:
    """Continues prompts."""
    state, fields = call.state, call.fields
    model = require_model(state, fields.model)
    params = fields.params()
    request_id = f"cmpl-{uuid.uuid4().hex}"
    generation = await Generation.submit(state, _submissions(call, params, request_id))
    head: dict[str, object] = {"id": request_id, "object": "text_completion", "created": state.now(), "model": model}
    answer = CompletionAnswer(fields, params, head)
    echoes = [_echo(state, output) if fields.echo else "" for output in generation.outputs]
    if fields.stream:
        return EventStream(answer.events(generation, await generation.started(), echoes), generation.abort)
    return JSONResponse(answer.whole(await generation.wait(), echoes))


def _submissions(call: Call[CompletionRequest], params: SamplingParams, request_id: str) -> list[Submission]:
    """A request for each prompt, with ids of their own where there are several."""
    engine, fields = call.state.engine, call.fields

    async def submit(place: int, prompt: str | list[int]) -> AsyncRequestStream:
        alone = len(fields.prompt) == 1
        try:
            return await engine.generate(
                prompt,
                params,
                request_id=request_id if alone else f"{request_id}-{place}",
                priority=fields.priority,
                cache_salt=fields.cache_salt,
                arrival_time=call.arrival_time,
                executor=call.executor,
            )
        except ValueError as error:
            raise error if alone else ValueError(f"prompt {place}: {error}") from None

    return [submit(place, prompt) for place, prompt in enumerate(fields.prompt)]


def _echo(state: ServerState, output: RequestOutput) -> str:
    return state.engine.tokenizer.decode(output.prompt_token_ids) if output.prompt is None else output.prompt


routes: list[BaseRoute] = [
    Route("/v1/completions", json_endpoint(CompletionRequest, create_completion), methods=["POST"])
]
