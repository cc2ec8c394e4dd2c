"""`/v1/requests/{id}/explain`: why a request's first token took so long, and which token was late."""

from __future__ import annotations

import asyncio
import copy
import math
import time
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from cudaprefill.errors import EngineDeadError
from cudaprefill.observe.explain import Account, ExplainLog, explain
from cudaprefill.observe.explain.text import account_text
from cudaprefill.observe.explain.work import cost_of
from cudaprefill.server.errors import ApiError

if TYPE_CHECKING:
    from cudaprefill.async_engine import AsyncEngine
    from cudaprefill.server.state import ServerState

DEFAULT_ITL_LIMIT_MS = 100.0


class Explanations:
    """Handlers find it as `request.app.state.explanations`.

    log: of the engine there is; a new engine begins a new one.
    """

    log: ExplainLog

    def __init__(self, state: ServerState) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        state.on_engine(self._on_engine)
        state.on_first_sent = lambda request_id: self.log.record_sent(request_id, time.monotonic())

    def _on_engine(self, engine: AsyncEngine) -> None:
        info = engine.info
        self.log = ExplainLog(block_size=info.block_size, prefix_caching=info.enable_prefix_caching)
        engine.events.subscribe(self.log)
        task = asyncio.ensure_future(engine.call(lambda engine: engine.scheduler.record_prefixes(True)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def explain_request(request: Request) -> Response:
    """The account of a request that is running or among the last that ran.

    Query: itl_limit_ms, a longer gap between tokens is late (default 100); format, json or text (default json).
    """
    state: ServerState = request.app.state.server
    explanations: Explanations = request.app.state.explanations
    limit = _limit(request.query_params.get("itl_limit_ms"))
    form = request.query_params.get("format", "json")
    if form not in ("json", "text"):
        raise ApiError(400, f"format must be json or text, got {form!r}", param="format")
    request_id = request.path_params["request_id"]
    engine = state.engine
    try:
        cost = await engine.call(lambda engine: copy.deepcopy(engine.scheduler.cost))
    except EngineDeadError:
        cost = None  # what is known of the past can still be told

    def account() -> Account:
        history = explanations.log.history()
        return explain(history, request_id, itl_limit=limit, cost=cost_of(cost), now=time.monotonic())

    try:
        told = await asyncio.to_thread(account)
    except KeyError:
        raise ApiError(
            404, f"request {request_id!r} is not among those that are remembered", code="not_found"
        ) from None
    if form == "text":
        return PlainTextResponse(account_text(told, engine.tokenizer.token_text))
    return JSONResponse(told.as_dict())


def _limit(text: str | None) -> float:
    """Seconds."""
    try:
        limit = DEFAULT_ITL_LIMIT_MS if text is None else float(text)
    except ValueError:
        limit = math.nan
    if not 0 < limit < math.inf:
        raise ApiError(
            400, f"itl_limit_ms must be a positive number of milliseconds, got {text!r}", param="itl_limit_ms"
        )
    return limit / 1e3


routes: list[BaseRoute] = [Route("/v1/requests/{request_id}/explain", explain_request)]
