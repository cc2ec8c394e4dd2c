"""`/tokenize` and `/detokenize`, with vLLM's fields."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from cudaprefill.async_engine import AsyncEngine
from cudaprefill.server.endpoint import Call, Fields, json_endpoint
from cudaprefill.server.model_list import num_virtual_tokens, require_model


class TokenizeRequest(BaseModel):
    """Either a prompt or messages."""

    model_config = ConfigDict(extra="ignore")

    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    add_special_tokens: bool = Field(True, description="of a prompt: what the tokenizer puts around it, as BOS")
    add_generation_prompt: bool = Field(True, description="of messages: open the answer")
    continue_final_message: bool = Field(False, description="of messages: leave the last one open")
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="of messages: the template's own variables")
    return_token_strs: bool = False


class DetokenizeRequest(BaseModel):
    model_config = ConfigDict(extra="ignore")

    model: str | None = None
    tokens: list[int]


async def tokenize(call: Call[TokenizeRequest]) -> Response:
    """The token ids of a prompt, or of messages through the chat template."""
    asked = require_model(call.state, call.fields.model)
    if (call.fields.prompt is None) == (call.fields.messages is None):
        raise ValueError("prompt or messages must be given, one of the two")
    room = call.state.engine.info.max_model_len - num_virtual_tokens(call.state, asked)
    return await _off_the_loop(call, lambda engine, fields: _tokens(engine, fields, room))


def _tokens(engine: AsyncEngine, fields: TokenizeRequest, max_model_len: int) -> bytes:
    tokenizer = engine.tokenizer
    if fields.prompt is not None:
        tokens = tokenizer.encode(fields.prompt, add_special_tokens=fields.add_special_tokens)
    else:
        tokens = tokenizer.encode_chat(
            fields.messages or [],
            add_generation_prompt=fields.add_generation_prompt and not fields.continue_final_message,
            continue_final_message=fields.continue_final_message,
            **tokenizer.chat_template.check_variables(fields.chat_template_kwargs or {}),
        )
    strings = [tokenizer.backend.id_to_token(token) for token in tokens] if fields.return_token_strs else None
    return json.dumps(
        {
            "count": len(tokens),
            "max_model_len": max_model_len,
            "tokens": tokens,
            "token_strs": strings,
        }
    ).encode()


async def detokenize(call: Call[DetokenizeRequest]) -> Response:
    """The text of token ids."""
    require_model(call.state, call.fields.model)
    return await _off_the_loop(call, _text)


def _text(engine: AsyncEngine, fields: DetokenizeRequest) -> bytes:
    vocab_size = engine.tokenizer.vocab_size
    for place, token in enumerate(fields.tokens):
        if not 0 <= token < vocab_size:
            raise ValueError(f"tokens[{place}] is {token}, but the vocabulary has {vocab_size} tokens")
    return json.dumps({"prompt": engine.tokenizer.decode(fields.tokens, skip_special_tokens=False)}).encode()


async def _off_the_loop(call: Call[Fields], work: Callable[[AsyncEngine, Fields], bytes]) -> Response:
    loop = asyncio.get_running_loop()
    content = await loop.run_in_executor(call.executor, work, call.state.engine, call.fields)
    return Response(content, media_type="application/json")


routes: list[BaseRoute] = [
    Route("/tokenize", json_endpoint(TokenizeRequest, tokenize), methods=["POST"]),
    Route("/detokenize", json_endpoint(DetokenizeRequest, detokenize), methods=["POST"]),
]
