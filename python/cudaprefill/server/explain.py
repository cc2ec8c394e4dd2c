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
from cudaprefill.observe.explain.work import cost_of
from cudaprefill.protocol.account_text import account_text
from cudaprefill.protocol.telemetry import DEFAULT_ITL_LIMIT_MS
from cudaprefill.server.errors import ApiError

if TYPE_CHECKING:
    from cudaprefill.async_engine import AsyncEngine
    from cudaprefill.server.state import ServerState


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

    async def account(self, engine: AsyncEngine, request_id: str, itl_limit_ms: float) -> Account:
        """Raises ApiError for a request that is not remembered, or a limit that is none."""
        if not 0 < itl_limit_ms < math.inf:
            raise ApiError(
                400, f"itl_limit_ms must be a positive number of milliseconds, got {itl_limit_ms}", param="itl_limit_ms"
            )
        try:
            cost = await engine.call(lambda engine: copy.deepcopy(engine.scheduler.cost))
        except EngineDeadError:
            cost = None  # what is known of the past can still be told

        def account() -> Account:
            history = self.log.history()
            limit = itl_limit_ms / 1e3
            return explain(
                history,
                request_id,
                itl_limit=limit,
                cost=cost_of(cost),
                itl_target_ms=engine.settings.itl_target_ms,
                now=time.monotonic(),
            )

        try:
            return await asyncio.to_thread(account)
        except KeyError:
            raise ApiError(
                404, f"request {request_id!r} is not among those that are remembered", code="request_not_found"
            ) from None


async def explain_request(request: Request) -> Response:
    """The account of a request that is running or among the last that ran.

    Query: itl_limit_ms, a longer gap between tokens is late (default 100); format, json or text (default json).
    """
    state: ServerState = request.app.state.server
    explanations: Explanations = request.app.state.explanations
    limit_ms = _number(request.query_params.get("itl_limit_ms"))
    form = request.query_params.get("format", "json")
    if form not in ("json", "text"):
        raise ApiError(400, f"format must be json or text, got {form!r}", param="format")
    engine = state.engine
    told = await explanations.account(engine, request.path_params["request_id"], limit_ms)
    if form == "text":
        return PlainTextResponse(account_text(told, engine.tokenizer.token_text))
    return JSONResponse(told.as_dict())


def _number(text: str | None) -> float:
    try:
        return DEFAULT_ITL_LIMIT_MS if text is None else float(text)
    except ValueError:
        raise ApiError(
            400, f"itl_limit_ms must be a positive number of milliseconds, got {text!r}", param="itl_limit_ms"
        ) from None


routes: list[BaseRoute] = [Route("/v1/requests/{request_id}/explain", explain_request)]
