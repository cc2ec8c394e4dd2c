"""What `chat` and `top` share: from flags to the terminal UI. No torch: a server has that in a process of its own."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from cudaprefill.cli.engine_flags import chosen_adapter, engine_arguments, engine_config
from cudaprefill_tui.app import Setup
from cudaprefill_tui.conversations import ChatSettings
from cudaprefill_tui.engine_link import EngineLink
from cudaprefill_tui.glyphs import ASCII, UNICODE, Glyphs
from cudaprefill_tui.playback import PlaybackLink
from cudaprefill_tui.preferences import preferences_path
from cudaprefill_tui.recording import Recorder, read_recording
from cudaprefill_tui.run import run
from cudaprefill_tui.server_link import ServerLink
from cudaprefill_tui.server_process import ServerProcess
from cudaprefill_tui.session import Session

MAX_HEADER = 1 << 16  # bytes of a trace's first line


def chat(flags: argparse.Namespace) -> int:
    """Attached to the servers of `--url`; without one, to a server of its own with the engine flags."""
    settings = ChatSettings(
        model=flags.with_adapter if flags.url else chosen_adapter(flags),
        system=flags.system or "",
        temperature=flags.temperature,
        top_p=flags.top_p,
        max_tokens=flags.max_tokens,
        seed=flags.seed,
    )
    if flags.url:
        return run(Setup(_session(flags.url, flags.api_key), None, settings, preferences_path(), _glyphs(flags)))
    engine_config(flags)  # what is wrong with them is said before a screen is opened
    server = ServerProcess(engine_arguments(flags))
    return run(Setup(_session([], None), server, settings, preferences_path(), _glyphs(flags)))


def top(flags: argparse.Namespace) -> int:
    """The panes alone, on running servers or on a recording."""
    with ExitStack() as stack:
        if flags.play is not None:
            session = Session([playback(Path(flags.play), flags.speed)], ServerLink)
        else:
            session = _session(flags.url or ["http://127.0.0.1:8000"], flags.api_key)
            if flags.record is not None:
                session.links[0].on_message = stack.enter_context(Recorder(Path(flags.record)))
        return run(Setup(session, None, None, preferences_path(), _glyphs(flags)))


def playback(path: Path, speed: float) -> PlaybackLink:
    """Of what `top --record` wrote, or of what `--trace` did."""
    with path.open("rb") as file:
        is_trace = b"cudaprefill_trace" in file.readline(MAX_HEADER)
    if not is_trace:
        return _recorded(path, speed)
    from cudaprefill.observe.trace import read_trace
    from cudaprefill.observe.trace_telemetry import trace_account, trace_telemetry

    trace = read_trace(path)
    return PlaybackLink(path, trace_telemetry(trace), speed, explain=partial(trace_account, trace))


def _recorded(path: Path, speed: float) -> PlaybackLink:
    """Explains its requests as of what was played."""
    from cudaprefill.observe.telemetry_log import TelemetryLog

    log = TelemetryLog()
    link = PlaybackLink(path, read_recording(path), speed, explain=log.account)
    link.on_message = log.apply
    return link


def _session(urls: Sequence[str], api_key: str | None) -> Session:
    """Raises ValueError for what is no URL."""
    links: list[EngineLink] = [ServerLink(url, api_key) for url in urls]
    return Session(links, ServerLink)


def _glyphs(flags: argparse.Namespace) -> Glyphs:
    """ASCII for the Linux console, whose fonts hold few signs, where the encoding has no others, and where asked."""
    can_show = not flags.ascii and "utf" in sys.stdout.encoding.lower() and os.environ.get("TERM") != "linux"
    return UNICODE if can_show else ASCII
