"""`/v1/responses` over HTTP: the same responses, one a request, as server-sent events or at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response as HttpResponse

from cudaprefill.protocol.codec import ProtocolError, encode, parse_object
from cudaprefill.protocol.responses import Response, ResponseBody, ResponseDeleted, ResponseEvent
from cudaprefill.server.body import SMALL_BODY, read_body
from cudaprefill.server.disconnect import until_gone
from cudaprefill.server.endpoint import REQUEST_MODELS
from cudaprefill.server.errors import ApiError
from cudaprefill.server.http_protocol import received_time
from cudaprefill.server.responses.errors import response_error
from cudaprefill.server.responses.parse import parse_body
from cudaprefill.server.responses.service import ResponsesService, RunningResponse
from cudaprefill.server.sse import EventStream


async def create_response(request: Request) -> HttpResponse:
    """A response to an input: whole, or as server-sent events."""
    service = ResponsesService.of(request)
    arrival_time = received_time(request)
    body = await read_body(request, service.state.config.max_body_size)
    running: RunningResponse | None = None
    try:
        asked = await _off_the_loop(service, body)
        running = service.start(asked, len(body), arrival_time)
        if asked.stream is not True:
            response = await until_gone(request.receive, _last(running))
            running.close()
            return _json(response)
        # The first event decides whether this is an answer or an error with a status of its own.
        events = running.events(until_admitted=True)
        first = await until_gone(request.receive, anext(events))
        return EventStream(_encoded(first, events), running.close)
    except BaseException as error:
        if running is not None:
            running.close()
        if isinstance(error, Exception) and not isinstance(error, ClientDisconnect):
            raise response_error(error) from error
        raise


REQUEST_MODELS[create_response] = ResponseBody


async def retrieve_response(request: Request) -> HttpResponse:
    """A response that runs, as it stands, or one that is kept."""
    service = ResponsesService.of(request)
    response_id = request.path_params["id"]
    if response_id in service.running:
        return _json(service.running[response_id].response)
    turn = service.store.get(response_id)
    if turn is None:
        raise _not_found(response_id)
    return _json(turn.response)


async def delete_response(request: Request) -> HttpResponse:
    """Forget a response: it can be neither fetched nor gone on from any more."""
    response_id = request.path_params["id"]
    if not ResponsesService.of(request).store.remove(response_id):
        raise _not_found(response_id)
    return _json(ResponseDeleted(id=response_id))


async def cancel_response(request: Request) -> HttpResponse:
    """End a response that runs, whoever asked for it; the answer comes when it has ended."""
    service = ResponsesService.of(request)
    running = service.running.get(request.path_params["id"])
    if running is None:
        raise _not_found(request.path_params["id"], "running")
    running.cancel()
    await running.ended.wait()
    return _json(running.response)


async def _last(running: RunningResponse) -> Response:
    """Raises what ended a response that failed."""
    async for _ in running.events(until_admitted=True, streamed=False):
        pass
    if running.error is not None:
        raise running.error
    return running.response


async def _encoded(first: ResponseEvent, others: AsyncIterator[ResponseEvent]) -> AsyncIterator[bytes]:
    yield _sse(first)
    async for event in others:
        yield _sse(event)


def _sse(event: ResponseEvent) -> bytes:
    return f"event: {event.type}\ndata: {encode(event)}\n\n".encode()


async def _off_the_loop(service: ResponsesService, body: bytes) -> ResponseBody:
    if len(body) <= SMALL_BODY:
        return _parse(body)
    return await asyncio.get_running_loop().run_in_executor(service.state.executor_for(len(body)), _parse, body)


def _parse(body: bytes) -> ResponseBody:
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise ProtocolError(f"the body must be UTF-8, but byte {error.start} is not") from None
    return parse_body(parse_object(text), ResponseBody)


def _json(message: Response | ResponseDeleted) -> HttpResponse:
    return HttpResponse(encode(message), media_type="application/json")


def _not_found(response_id: str, what: str = "kept or running") -> ApiError:
    return ApiError(404, f"no response {response_id!r} is {what}", param="response_id", code="response_not_found")
