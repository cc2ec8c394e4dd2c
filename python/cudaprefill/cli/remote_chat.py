"""The chat's backend on a running server."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from typing import Any

from cudaprefill.client import Client, ClientError, SyncResponseStream
from cudaprefill_tui.backend import AnswerFigures, Message


class RemoteAnswer:
    """An answer of a server. `abort` asks it to stop; what it had sent by then still comes."""

    def __init__(self, stream: SyncResponseStream) -> None:
        self._stream = stream
        self._texts = iter(stream)

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        try:
            return next(self._texts)
        except ClientError as error:
            raise OSError(str(error)) from error

    def abort(self) -> None:
        self._stream.cancel()

    @property
    def figures(self) -> AnswerFigures:
        """A server tells the mean of an answer's ITLs, which stands for each of them."""
        response = self._stream.result
        usage, metrics = response.usage, response.metrics
        output_tokens = usage.output_tokens if usage else 0
        itl = metrics.mean_itl if metrics else None
        reasons = {"completed": "stop", "incomplete": "length"}
        return AnswerFigures(
            prompt_tokens=usage.input_tokens if usage else 0,
            cached_tokens=usage.input_tokens_details.cached_tokens if usage else 0,
            output_tokens=output_tokens,
            ttft=metrics.ttft if metrics else None,
            itls=(itl,) * (output_tokens - 1) if itl is not None else (),
            finish_reason=reasons.get(response.status, "abort"),
        )


class RemoteBackend:
    """A running server, as the chat wants it."""

    def __init__(self, client: Client, url: str, fields: dict[str, Any]) -> None:
        self._client = client
        self._fields = fields
        self.title = url

    def ask(self, messages: list[Message]) -> RemoteAnswer:
        try:
            stream = self._client.respond([dict(message) for message in messages], store=False, **self._fields)
            return RemoteAnswer(stream.__enter__())
        except ClientError as error:
            raise ValueError(str(error)) from error


@contextlib.contextmanager
def open_backend(flags: argparse.Namespace) -> Iterator[RemoteBackend]:
    """Raises OSError where the server cannot be reached, ValueError for what is no URL."""
    (url,) = flags.url
    fields = {"temperature": flags.temperature, "top_p": flags.top_p, "max_output_tokens": flags.max_tokens}
    if flags.seed is not None:
        fields["seed"] = flags.seed
    if flags.with_adapter is not None:
        fields["model"] = flags.with_adapter
    with Client(url, flags.api_key) as client:
        try:
            client.connect()
        except ClientError as error:
            raise OSError(str(error)) from error
        yield RemoteBackend(client, url, fields)
