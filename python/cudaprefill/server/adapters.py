"""`/v1/load_lora_adapter` and `/v1/unload_lora_adapter`: vLLM's names and bodies, for every kind of adapter.

Off unless a folder is named for it, and adapters come from inside that folder alone.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from cudaprefill.adapters import UnknownAdapterError
from cudaprefill.adapters.files import CONFIG, TENSORS
from cudaprefill.server.endpoint import Call, json_endpoint
from cudaprefill.server.errors import ApiError
from cudaprefill.server.state import ServerState


class LoadAdapter(BaseModel):
    model_config = ConfigDict(extra="ignore")

    lora_name: str = Field(description="what requests will name as their model")
    lora_path: str = Field(description="a folder as PEFT saves it, inside the one of --allow-runtime-adapters")
    load_inplace: bool = Field(False, description="take the place of an adapter of this name, if there is one")


class UnloadAdapter(BaseModel):
    model_config = ConfigDict(extra="ignore")

    lora_name: str


async def load_adapter(call: Call[LoadAdapter]) -> Response:
    """Loads an adapter, of whatever kind."""
    folder, name = _folder(call.state), call.fields.lora_name
    path = _inside(folder, call.fields.lora_path)
    if name in call.state.model_names:
        raise ApiError(400, f"lora_name {name!r} is the name of the model", param="lora_name")
    await call.state.engine.load_adapter(name, path, in_place=call.fields.load_inplace)
    return PlainTextResponse(f"Success: adapter {name!r} was loaded.")


async def unload_adapter(call: Call[UnloadAdapter]) -> Response:
    """Unloads an adapter: new requests are refused at once, and the answer comes when the running ones have ended."""
    _folder(call.state)
    try:
        await call.state.engine.unload_adapter(call.fields.lora_name)
    except UnknownAdapterError as error:
        raise ApiError(404, str(error), param="lora_name", code="model_not_found") from None
    return PlainTextResponse(f"Success: adapter {call.fields.lora_name!r} was unloaded.")


def _folder(state: ServerState) -> Path:
    if state.config.allow_runtime_adapters is None:
        raise ApiError(
            403,
            "adapters cannot be loaded or unloaded while this server runs: start it with --allow-runtime-adapters DIR",
            code="runtime_adapters_not_allowed",
        )
    return Path(state.config.allow_runtime_adapters).resolve()


def _inside(folder: Path, asked: str) -> Path:
    """The folder `asked` for, which with both of its files must lie inside `folder`, links followed."""
    path = folder / asked
    for each in (path, path / CONFIG, path / TENSORS):
        try:
            is_inside = each.resolve().is_relative_to(folder)
        except (OSError, ValueError, RuntimeError):  # a loop of links, a name that no file can have
            is_inside = False
        if not is_inside:
            raise ApiError(
                400,
                f"lora_path {asked!r} does not lie in the folder from which adapters may be loaded",
                param="lora_path",
            )
    return path.resolve()


routes: list[BaseRoute] = [
    Route("/v1/load_lora_adapter", json_endpoint(LoadAdapter, load_adapter), methods=["POST"]),
    Route("/v1/unload_lora_adapter", json_endpoint(UnloadAdapter, unload_adapter), methods=["POST"]),
]
