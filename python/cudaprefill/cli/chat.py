"""`cudaprefill chat`: a desktop on a terminal, line by line everywhere else.

What each way needs is imported when it is taken: the desktop must not wait for torch.
"""

from __future__ import annotations

import argparse
import os
import sys

from cudaprefill.cli.engine_flags import engine_arguments
from cudaprefill_tui.backend import ChatBackend
from cudaprefill_tui.line_chat import run_line_chat
from cudaprefill_tui.terminal_chat import TerminalChat, is_terminal


def run(flags: argparse.Namespace) -> int:
    if flags.url and (of_engine := engine_arguments(flags)):
        raise ValueError(f"{' '.join(of_engine)}: with --url the engine is the server's, and such flags are its own")
    if len(flags.url) > 1 and (flags.plain or not is_terminal()):
        raise ValueError(f"{len(flags.url)} servers were given with --url, and line by line only one can answer")
    if is_terminal() and not flags.plain and os.environ.get("TERM", "dumb") != "dumb":
        from cudaprefill.cli.desktop import chat

        return chat(flags)
    if flags.url:
        from cudaprefill.cli.remote_chat import open_backend as open_remote

        with open_remote(flags) as backend:
            return _by_lines(backend, flags)
    from cudaprefill.cli.local_chat import open_backend as open_local

    with open_local(flags) as backend:
        return _by_lines(backend, flags)


def _by_lines(backend: ChatBackend, flags: argparse.Namespace) -> int:
    if is_terminal():
        return TerminalChat(backend, sys.stdout, flags.system).run()
    return run_line_chat(backend, sys.stdin, sys.stdout, sys.stderr, flags.system)
