"""What a caller may want to tell apart from a mistake of its own, which is a ValueError."""

from __future__ import annotations


class QueueFullError(RuntimeError):
    """The waiting queue has max_num_queued_reqs requests: try again later."""


class SlowReaderError(RuntimeError):
    """More of a request's output waited unread than its reader allowed; the request was aborted."""


class EngineDeadError(RuntimeError):
    """The engine has stopped, by a failure of a step or by `close`, and takes no more requests."""
