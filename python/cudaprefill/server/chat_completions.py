"""`POST /v1/chat/completions`."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator, Mapping
from typing import Any, ClassVar

from pydantic import Field
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from cudaprefill.outputs import CompletionOutput, RequestOutput
from cudaprefill.sampling_params import SamplingParams
from cudaprefill.server.endpoint import Call, json_endpoint
from cudaprefill.server.generation import Generation, PromptDelta
from cudaprefill.server.logprob_fields import chat_logprobs
from cudaprefill.server.model_list import require_model
from cudaprefill.server.sampling_fields import SamplingFields
from cudaprefill.server.sse import EventStream
from cudaprefill.server.usage import usage


class ChatCompletionRequest(SamplingFields):
    UNSUPPORTED: ClassVar[Mapping[str, object]] = {
        **SamplingFields.UNSUPPORTED,
        "add_generation_prompt": True,
        "add_special_tokens": False,
        "audio": None,
        "chat_template": None,
        "continue_final_message": False,
        "documents": [],
        "echo": False,
        "mm_processor_kwargs": {},
        "web_search_options": None,
    }

    messages: list[dict[str, Any]] = Field(description="role and content, which is text or a list of text parts")
    chat_template_kwargs: dict[str, Any] | None = Field(
        None, description="variables of the model's chat template, such as enable_thinking"
    )
    max_completion_tokens: int | None = Field(None, description="the newer name of max_tokens, and goes before it")
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, description="most likely tokens to tell beside each one; needs logprobs")
    tools: list[dict[str, Any]] | None = Field(None, description="only empty ones: tools are not supported")
    functions: list[dict[str, Any]] | None = Field(None, description="as tools")
    tool_choice: str | dict[str, Any] | None = Field(None, description='"none" or "auto"')
    modalities: list[str] | None = Field(None, description='["text"]')

    def params(self) -> SamplingParams:
        """Raises ValueError that begins with the name of the field that is wrong."""
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs to be true")
        # Fields that SamplingParams knows by another name.
        other_names = {"max_tokens": "max_tokens", "logprobs": "top_logprobs"}
        max_tokens = self.max_tokens
        if self.max_completion_tokens is not None:
            other_names["max_tokens"], max_tokens = "max_completion_tokens", self.max_completion_tokens
        try:
            return self.sampling_params(
                max_tokens=max_tokens, logprobs=(self.top_logprobs or 0) if self.logprobs else None
            )
        except ValueError as error:
            name, space, reason = str(error).partition(" ")
            raise ValueError(f"{other_names.get(name, name)}{space}{reason}") from None

    def refuse_unsupported(self) -> None:
        """Raises ApiError or ValueError for what would change the answer and cannot be had here."""
        super().refuse_unsupported()
        for name in ("tools", "functions"):
            if getattr(self, name):
                raise ValueError(f"{name} must be empty: this server calls no tools")
        if self.tool_choice not in (None, "none", "auto"):
            raise ValueError('tool_choice must be "none" or "auto": this server calls no tools')
        if self.modalities not in (None, ["text"]):
            raise ValueError('modalities must be ["text"]: this server has no other')


class ChatAnswer:
    """Writes the answer to one request, whole or in events."""

    def __init__(self, fields: ChatCompletionRequest, request_id: str, created: int, model: str) -> None:
        self._fields = fields
        self._num_top = fields.top_logprobs or 0
        self._head = {"id": request_id, "created": created, "model": model}

    def whole(self, outputs: list[RequestOutput]) -> dict[str, object]:
        choices = [self._choice(each) for output in outputs for each in output.outputs]
        return {"object": "chat.completion", **self._head, "choices": choices, "usage": usage(outputs)}

    def _choice(self, output: CompletionOutput) -> dict[str, object]:
        return {
            "index": output.index,
            "message": {"role": "assistant", "content": output.text, "refusal": None},
            "logprobs": chat_logprobs(output.logprobs, self._num_top),
            "finish_reason": output.finish_reason,
            "stop_reason": output.stop_reason,
        }

    async def events(self, generation: Generation, deltas: AsyncIterator[PromptDelta]) -> AsyncIterator[bytes]:
        """One event a delta: the role comes with the first text, so that the first event carries a token."""
        begin = f"data: {json.dumps({'object': 'chat.completion.chunk', **self._head})[:-1]}, "
        started: set[int] = set()
        continuous = self._fields.continuous_usage
        no_usage = ', "usage": null' if self._fields.include_usage else ""
        async for _, delta in deltas:
            role = "" if delta.index in started else '"role": "assistant", '
            started.add(delta.index)
            logprobs = "null" if delta.logprobs is None else json.dumps(chat_logprobs(delta.logprobs, self._num_top))
            end = "null"
            if delta.finish_reason is not None:
                end = f'{json.dumps(delta.finish_reason)}, "stop_reason": {json.dumps(delta.stop_reason)}'
            used = f', "usage": {json.dumps(usage(generation.outputs))}' if continuous else no_usage
            yield (
                f'{begin}"choices": [{{"index": {delta.index}, "delta": {{{role}"content": '
                f'{json.dumps(delta.text)}}}, "logprobs": {logprobs}, "finish_reason": {end}}}]{used}}}\n\n'
            ).encode()
        if self._fields.include_usage:
            yield f'{begin}"choices": [], "usage": {json.dumps(usage(generation.outputs))}}}\n\n'.encode()


async def create_chat_completion(call: Call[ChatCompletionRequest]) -> Response:
    """Answers a conversation through the model's chat template."""
    state, fields = call.state, call.fields
    model = require_model(state, fields.model)
    fields.refuse_unsupported()
    params = fields.params()
    request_id = f"chatcmpl-{uuid.uuid4().hex}"
    submission = state.engine.chat(
        fields.messages,
        params,
        request_id=request_id,
        priority=fields.priority,
        cache_salt=fields.cache_salt,
        adapter=model.adapter,
        chat_template_kwargs=fields.chat_template_kwargs,
        arrival_time=call.arrival_time,
        executor=call.executor,
    )
    generation = await Generation.submit(state, [submission])
    answer = ChatAnswer(fields, request_id, state.now(), model.name)
    if fields.stream:
        return EventStream(answer.events(generation, await generation.started()), generation.abort)
    return JSONResponse(answer.whole(await generation.wait()))


routes: list[BaseRoute] = [
    Route("/v1/chat/completions", json_endpoint(ChatCompletionRequest, create_chat_completion), methods=["POST"])
]
