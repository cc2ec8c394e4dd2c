"""`cudaprefill trace export`: a recorded trace for Perfetto."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from cudaprefill.observe.trace import read_trace
from cudaprefill.observe.trace_export import chrome_trace


def run(flags: argparse.Namespace) -> int:
    trace = read_trace(flags.trace)
    Path(flags.output).write_text(json.dumps(chrome_trace(trace), separators=(",", ":")))
    for count, what in ((trace.num_dropped, "events were dropped"), (trace.num_unreadable, "lines cannot be read")):
        if count:
            print(f"cudaprefill: {flags.trace}: {count} {what}", file=sys.stderr)
    return 0
