"""`/openapi.json`: the HTTP API described from its own routes and data models."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, TypeAdapter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

import cudaprefill
from cudaprefill.protocol.responses import ResponseCreate
from cudaprefill.server.endpoint import REQUEST_MODELS
from cudaprefill.server.responses.http import create_response

SCHEMAS = "#/components/schemas/"
PUBLIC_METHODS = ("GET", "POST", "DELETE")


class ErrorFields(BaseModel):
    """What went wrong; `param` names the field, where it is one field's fault."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    error: ErrorFields


def describe(routes: Sequence[BaseRoute]) -> dict[str, Any]:
    """An OpenAPI 3.1 document."""
    schemas: dict[str, Any] = {}
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        if isinstance(route, Route):
            for method in PUBLIC_METHODS:
                if method in (route.methods or ()):
                    operations = paths.setdefault(route.path_format, {})
                    operations[method.lower()] = _operation(route, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "cudaprefill", "version": cudaprefill.__version__},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


def _operation(route: Route, schemas: dict[str, Any]) -> dict[str, Any]:
    error = {"description": "an error", "content": _json(_reference(ErrorBody, schemas))}
    operation: dict[str, Any] = {
        "summary": (inspect.getdoc(route.endpoint) or route.name.strip("_").replace("_", " ")).split("\n")[0],
        "responses": {"200": {"description": "the answer"}, "4XX": error, "5XX": error},
    }
    if route.param_convertors:
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in route.param_convertors
        ]
    model = ResponseCreate if route.endpoint is create_response else REQUEST_MODELS.get(route.endpoint)
    if model is not None:
        operation["requestBody"] = {"required": True, "content": _json(_reference(model, schemas))}
    return operation


def _reference(model: type, schemas: dict[str, Any]) -> dict[str, str]:
    """Adds `model` and what it is made of to `schemas`."""
    schema = TypeAdapter(model).json_schema(ref_template=SCHEMAS + "{model}")
    schemas.update(schema.pop("$defs", {}))
    schemas[model.__name__] = schema
    return {"$ref": SCHEMAS + model.__name__}


def _json(schema: dict[str, str]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


async def openapi(request: Request) -> Response:
    """This description."""
    if not hasattr(request.app.state, "description"):
        request.app.state.description = describe(request.app.routes)
    return JSONResponse(request.app.state.description)


routes: list[BaseRoute] = [Route("/openapi.json", openapi)]
