"""`cudaprefill explain`: the account of one request, from a running server or out of a trace."""

from __future__ import annotations

import argparse
import json
import os
import sys
import urllib.error
import urllib.parse
import urllib.request

PATIENCE = 30  # seconds


def run(flags: argparse.Namespace) -> int:
    if flags.itl_limit_ms <= 0:
        raise ValueError(f"--itl-limit-ms must be positive, got {flags.itl_limit_ms}")
    sys.stdout.write(_from_trace(flags) if flags.trace is not None else _from_server(flags))
    return 0


def _from_server(flags: argparse.Namespace) -> str:
    query = urllib.parse.urlencode({"itl_limit_ms": flags.itl_limit_ms, "format": "json" if flags.json else "text"})
    path = f"/v1/requests/{urllib.parse.quote(flags.request, safe='')}/explain"
    request = urllib.request.Request(f"{flags.url.rstrip('/')}{path}?{query}")
    key = flags.api_key or os.environ.get("CUDAPREFILL_API_KEY")
    if key:
        request.add_header("Authorization", f"Bearer {key}")
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            body: str = answer.read().decode()
    except urllib.error.HTTPError as error:
        raise ValueError(_message(error)) from None
    except urllib.error.URLError as error:
        raise ValueError(f"no server answers at {flags.url}: {error.reason}") from None
    return json.dumps(json.loads(body), indent=2) + "\n" if flags.json else body


def _message(error: urllib.error.HTTPError) -> str:
    """The server's own words where it is one of ours."""
    try:
        return str(json.loads(error.read())["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"{error.url} answers {error.code} {error.reason}"


def _from_trace(flags: argparse.Namespace) -> str:
    from cudaprefill.observe.explain import explain
    from cudaprefill.observe.explain.history import History
    from cudaprefill.observe.trace import read_trace
    from cudaprefill.protocol.account_text import account_text
    from cudaprefill.tune.step_times import LEAST_STEPS, StepModel, step_times
    from cudaprefill.tune.trace_workload import scheduler_config

    trace = read_trace(flags.trace)
    config = scheduler_config(trace)
    history = History.of(trace.events, block_size=config.block_size, prefix_caching=config.enable_prefix_caching)
    times = step_times(trace.events)
    cost = StepModel(times).predict if len(times) >= LEAST_STEPS else None
    try:
        target = trace.header.scheduler.get("itl_target_ms")
        account = explain(history, flags.request, itl_limit=flags.itl_limit_ms / 1e3, cost=cost, itl_target_ms=target)
    except KeyError:
        raise ValueError(f"{flags.trace} has no request {flags.request!r}") from None
    return json.dumps(account.as_dict(), indent=2) + "\n" if flags.json else account_text(account)
