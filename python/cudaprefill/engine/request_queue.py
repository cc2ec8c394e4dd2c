"""Requests in the order in which they are served."""

from __future__ import annotations

from bisect import bisect_left
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from cudaprefill.engine.request import Request


def rows_of(requests: Sequence[Request]) -> NDArray[np.int32]:
    """[len(requests)]: of the request table."""
    return np.array([request.row for request in requests], dtype=np.int32)


class RequestRows:
    """What a queue held at one moment; all of it is made once, however many steps it lasts."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self.requests = tuple(requests)
        self.rows = rows_of(requests)

    @cached_property
    def ids(self) -> tuple[str, ...]:
        return tuple(request.request_id for request in self.requests)

    @cached_property
    def numbers(self) -> tuple[int, ...]:
        return tuple(request.number for request in self.requests)


class RequestQueue:
    """Sorted by `Request.order`, which is unique: the first is the oldest of the most urgent."""

    def __init__(self) -> None:
        self._requests: list[Request] = []
        self._snapshot: RequestRows | None = None

    def add(self, request: Request) -> None:
        self._requests.insert(self._position(request), request)
        self._snapshot = None

    def remove(self, request: Request) -> None:
        """Raises ValueError if the request is not here."""
        position = self._position(request)
        if position == len(self) or self._requests[position] is not request:
            raise ValueError(f"request {request.request_id!r} is not in the queue")
        del self._requests[position]
        self._snapshot = None

    @property
    def first(self) -> Request:
        return self._requests[0]

    @property
    def last(self) -> Request:
        return self._requests[-1]

    def snapshot(self) -> RequestRows:
        """Built anew only after a change, so that a step costs nothing per request."""
        if self._snapshot is None:
            self._snapshot = RequestRows(self._requests)
        return self._snapshot

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    def __contains__(self, request: Request) -> bool:
        position = self._position(request)
        return position < len(self) and self._requests[position] is request

    def _position(self, request: Request) -> int:
        return bisect_left(self._requests, request.order, key=lambda other: other.order)
