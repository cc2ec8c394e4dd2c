"""`/v1/engine`: what the engine is, and those of its settings that may change while it runs."""

from __future__ import annotations

import dataclasses

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

import cudaprefill
from cudaprefill.engine.factory import EngineInfo
from cudaprefill.protocol.itl_target import ItlTarget
from cudaprefill.protocol.telemetry import EngineDescription, EngineSettings
from cudaprefill.server.endpoint import Call, json_endpoint
from cudaprefill.server.state import ServerState


class ChangeSettings(BaseModel):
    """What is left out stays as it is."""

    model_config = ConfigDict(extra="forbid")  # what cannot be changed must not look changed

    max_num_batched_tokens: int | None = Field(None, description="the token budget of a step")
    long_prefill_token_threshold: int | None = Field(
        None, description="most tokens of one prompt in a step while others wait; 0: automatic"
    )
    itl_target_ms: ItlTarget | None = Field(
        None, description='keep steps this short while requests decode; 0: no target; "auto": see docs/scheduling.md'
    )


def describe_engine(info: EngineInfo) -> EngineDescription:
    names = {field.name for field in dataclasses.fields(EngineDescription)} - {"version"}
    return EngineDescription(**{name: getattr(info, name) for name in names}, version=cudaprefill.__version__)


async def get_engine(request: Request) -> Response:
    """What the engine is, and its live settings."""
    state: ServerState = request.app.state.server
    return _answer(state, state.engine.settings)


async def change_settings(call: Call[ChangeSettings]) -> Response:
    """Changes live settings; the answer has all of them."""
    changes = call.fields.model_dump(exclude_none=True)
    return _answer(call.state, await call.state.engine.change_settings(**changes))


def _answer(state: ServerState, settings: EngineSettings) -> Response:
    description = describe_engine(state.engine.info)
    return JSONResponse({"engine": dataclasses.asdict(description), "settings": dataclasses.asdict(settings)})


routes: list[BaseRoute] = [
    Route("/v1/engine", get_engine),
    Route("/v1/engine", json_endpoint(ChangeSettings, change_settings), methods=["POST"]),
]
