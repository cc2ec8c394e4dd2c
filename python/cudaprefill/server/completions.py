"""`POST /v1/completions`."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from pydantic import Field
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from cudaprefill.engine.request_stream import AsyncRequestStream
from cudaprefill.outputs import CompletionOutput, RequestOutput, TokenLogprobs
from cudaprefill.sampling_params import SamplingParams
from cudaprefill.server.endpoint import Call, json_endpoint
from cudaprefill.server.generation import Generation, PromptDelta, Submission
from cudaprefill.server.logprob_fields import CompletionLogprobs, prompt_logprobs
from cudaprefill.server.model_list import require_model
from cudaprefill.server.prompts import Prompts
from cudaprefill.server.sampling_fields import SamplingFields
from cudaprefill.server.sse import EventStream
from cudaprefill.server.usage import usage
from cudaprefill.text.tokenizer import Tokenizer


class CompletionRequest(SamplingFields):
    UNSUPPORTED: ClassVar[Mapping[str, object]] = {**SamplingFields.UNSUPPORTED, "add_special_tokens": True}

    prompt: Prompts
    echo: bool = Field(False, description="begin the text with the prompt")
    logprobs: int | None = Field(None, description="most likely tokens to tell beside each one")
    prompt_logprobs: int | None = Field(None, description="the same for each token of the prompt; not with stream")
    best_of: int | None = Field(None, description="only as n")
    suffix: str | None = Field(None, description="only empty: text is not inserted")

    def params(self) -> SamplingParams:
        """Raises ValueError that begins with the name of the field that is wrong."""
        if self.suffix:
            raise ValueError("suffix must be empty: this server does not insert text")
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise ValueError(f"best_of must be as n, which is {self.n or 1}, got {self.best_of}")
        if self.prompt_logprobs is not None and self.stream:
            raise ValueError("prompt_logprobs cannot be streamed")
        of_prompt = self.prompt_logprobs
        if self.echo and self.logprobs is not None:
            of_prompt = max(self.logprobs, of_prompt or 0)
        return self.sampling_params(logprobs=self.logprobs, prompt_logprobs=of_prompt)


@dataclass(frozen=True)
class Echo:
    """What a choice begins with; nothing unless the request asks for it."""

    text: str = ""
    first_token: str = ""  # its text

    @classmethod
    def of(cls, tokenizer: Tokenizer, output: RequestOutput) -> Echo:
        token_ids = output.prompt_token_ids
        text = tokenizer.decode(token_ids, skip_special_tokens=False) if output.prompt is None else output.prompt
        return cls(text, tokenizer.token_text(token_ids[0]))


class CompletionAnswer:
    """Writes the answer to one request, whole or in events. Choices of the first prompt come first."""

    def __init__(
        self,
        fields: CompletionRequest,
        params: SamplingParams,
        head: dict[str, object],
        generation: Generation,
        echoes: list[Echo],
    ) -> None:
        """`head`: what is the same in all events. `echoes`: one a prompt."""
        self._fields = fields
        self._n = params.n
        self._head = head
        self._generation = generation
        self._echoes = echoes

    async def whole(self) -> dict[str, object]:
        outputs = await self._generation.wait()
        choices = [self._choice(place, each) for place, output in enumerate(outputs) for each in output.outputs]
        return {**self._head, "choices": choices, "usage": usage(outputs)}

    def _choice(self, place: int, output: CompletionOutput) -> dict[str, object]:
        choice: dict[str, object] = {
            "index": place * self._n + output.index,
            "text": self._echoes[place].text + output.text,
            "logprobs": None
            if output.logprobs is None
            else self._first_logprobs(CompletionLogprobs(self._num_top), place, output.logprobs),
            "finish_reason": output.finish_reason,
            "stop_reason": output.stop_reason,
        }
        if self._fields.prompt_logprobs is not None:
            choice["prompt_logprobs"] = prompt_logprobs(self._generation.outputs[place].prompt_logprobs or ())
        return choice

    async def events(self, deltas: AsyncIterator[PromptDelta]) -> AsyncIterator[bytes]:
        """One event a delta; an echo comes with the first text, so that the first event carries a token."""
        begin = f"data: {json.dumps(self._head)[:-1]}, "
        writers: dict[int, CompletionLogprobs] = {}
        started: set[int] = set()
        continuous = self._fields.continuous_usage
        no_usage = ', "usage": null' if self._fields.include_usage else ""
        async for place, delta in deltas:
            index = place * self._n + delta.index
            echo = "" if index in started else self._echoes[place].text
            started.add(index)
            logprobs = "null"
            if delta.logprobs is not None:
                logprobs = json.dumps(self._next_logprobs(writers, index, place, delta.logprobs))
            end = "null"
            if delta.finish_reason is not None:
                end = f'{json.dumps(delta.finish_reason)}, "stop_reason": {json.dumps(delta.stop_reason)}'
            used = f', "usage": {json.dumps(usage(self._generation.outputs))}' if continuous else no_usage
            yield (
                f'{begin}"choices": [{{"index": {index}, "text": {json.dumps(echo + delta.text)}, '
                f'"logprobs": {logprobs}, "finish_reason": {end}}}]{used}}}\n\n'
            ).encode()
        if self._fields.include_usage:
            yield f'{begin}"choices": [], "usage": {json.dumps(usage(self._generation.outputs))}}}\n\n'.encode()

    @property
    def _num_top(self) -> int:
        return self._fields.logprobs or 0

    def _first_logprobs(
        self, writer: CompletionLogprobs, place: int, tokens: Sequence[TokenLogprobs]
    ) -> dict[str, list[object]]:
        """With those of the echo in front."""
        if not self._fields.echo:
            return writer.take(tokens)
        of_prompt = self._generation.outputs[place].prompt_logprobs or ()
        return writer.take(tokens, of_prompt, self._echoes[place].first_token)

    def _next_logprobs(
        self, writers: dict[int, CompletionLogprobs], index: int, place: int, tokens: Sequence[TokenLogprobs]
    ) -> dict[str, list[object]]:
        if index in writers:
            return writers[index].take(tokens)
        writers[index] = CompletionLogprobs(self._num_top)
        return self._first_logprobs(writers[index], place, tokens)


async def create_completion(call: Call[CompletionRequest]) -> Response:
    """Continues prompts."""
    state, fields = call.state, call.fields
    model = require_model(state, fields.model)
    fields.refuse_unsupported()
    params = fields.params()
    most = state.engine.most_requests
    if most is not None and len(fields.prompt) > most:  # a retry could not help
        raise ValueError(
            f"prompt holds {len(fields.prompt)} prompts, but no more than {most} can run or wait at once "
            "(max_num_seqs and max_num_queued_reqs together)"
        )
    request_id = f"cmpl-{uuid.uuid4().hex}"
    generation = await Generation.submit(state, _submissions(call, params, request_id, model.adapter))
    head: dict[str, object] = {
        "id": request_id,
        "object": "text_completion",
        "created": state.now(),
        "model": model.name,
    }
    tokenizer = state.engine.tokenizer
    echoes = [Echo.of(tokenizer, output) if fields.echo else Echo() for output in generation.outputs]
    answer = CompletionAnswer(fields, params, head, generation, echoes)
    if fields.stream:
        return EventStream(answer.events(await generation.started()), generation.abort)
    return JSONResponse(await answer.whole())


def _submissions(
    call: Call[CompletionRequest], params: SamplingParams, request_id: str, adapter: str | None
) -> list[Submission]:
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
                adapter=adapter,
                arrival_time=call.arrival_time,
                executor=call.executor,
            )
        except ValueError as error:
            raise error if alone else ValueError(f"prompt {place}: {error}") from None

    return [submit(place, prompt) for place, prompt in enumerate(fields.prompt)]


routes: list[BaseRoute] = [
    Route("/v1/completions", json_endpoint(CompletionRequest, create_completion), methods=["POST"])
]
