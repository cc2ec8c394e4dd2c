"""`cudaprefill top`: the engine's inside in the terminal, without the chat."""

from __future__ import annotations

import argparse

from cudaprefill_tui.terminal_chat import is_terminal


def run(flags: argparse.Namespace) -> int:
    if not is_terminal():
        raise ValueError("top draws on a terminal, and standard input or output is none")
    from cudaprefill.cli.desktop import top

    return top(flags)
