"""Loads the engine for a command, and tells the person about it."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict

from cudaprefill.cli.engine_flags import engine_config, preset_line
from cudaprefill.cli.progress import loading_model
from cudaprefill.llm import LLM


def load_llm(flags: argparse.Namespace) -> LLM:
    """Progress and the start-up line go to standard error."""
    chosen = engine_config(flags)
    config = asdict(chosen)
    with loading_model() as progress:
        llm = LLM(config.pop("model"), load_progress=progress, **config)
    if line := preset_line(chosen, llm.info.device):
        print(f"cudaprefill: {line}", file=sys.stderr)
    print(f"cudaprefill: {llm.info}", file=sys.stderr, flush=True)
    return llm
