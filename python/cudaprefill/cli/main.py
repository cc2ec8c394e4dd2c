"""`cudaprefill`: chat, generate, info, serve, top."""

from __future__ import annotations

import argparse
import importlib
import io
import os
import sys
from collections.abc import Sequence

from cudaprefill.cli.engine_flags import add_engine_flags, count
from cudaprefill.cli.server_flags import add_server_flags
from cudaprefill.cli.tune_flags import add_tune_commands
from cudaprefill.errors import EngineDeadError, QueueFullError
from cudaprefill.garbage import uncollected

# A command's module is imported only when it runs: --help must not wait for torch.
NAMES = ("chat", "generate", "info", "serve", "top", "explain", "trace", "replay", "advise", "profile")
COMMANDS = {name: f"cudaprefill.cli.{name}" for name in NAMES}


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0, 1 when the work failed, 2 for a wrong command line, 130 after Ctrl-C."""
    _prepare_standard_streams()
    flags = build_parser().parse_args(arguments)
    try:
        with uncollected():
            command = importlib.import_module(COMMANDS[flags.command])
        return int(command.run(flags))
    except KeyboardInterrupt:
        print("\ncudaprefill: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output has left
        sys.stdout = None
        return 1
    except (ValueError, OSError, EngineDeadError, QueueFullError) as error:
        print(f"cudaprefill: {error}", file=sys.stderr)
        return 1


def _prepare_standard_streams() -> None:
    """A stream that the parent has closed is empty; no byte of the input and no character of an output is fatal."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  (lives as long as the process)
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")  # a prompt with such bytes is refused by name, the next goes on
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="cudaprefill", description="An LLM engine whose prefill you can see.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    chat = commands.add_parser("chat", help="chat and watch; without a terminal: prompts in line by line, answers out")
    _add_client_flags(chat, "(default: an engine of its own, with the engine flags)")
    chat.add_argument("--plain", action="store_true", help="on a terminal too: line by line, without a desktop")
    chat.add_argument(
        "--with-adapter",
        metavar="NAME",
        help="who answers: one of those of --adapter (default: the only one), or of the server of --url",
    )
    chat.add_argument("--system", metavar="TEXT", help="system prompt")
    chat.add_argument("--max-tokens", type=count, metavar="N", help="longest answer (default: what the context allows)")
    chat.add_argument("--temperature", type=float, default=0.0, help="0 answers greedily (default: %(default)s)")
    chat.add_argument("--top-p", type=float, default=1.0, help="(default: %(default)s)")
    chat.add_argument("--seed", type=int, help="makes sampled answers repeatable")
    add_engine_flags(chat)

    generate = commands.add_parser("generate", help="continue prompts, without a chat template")
    generate.add_argument("prompts", nargs="*", metavar="PROMPT", help="(default: standard input, one prompt a line)")
    generate.add_argument("--max-tokens", type=count, default=16, metavar="N", help="(default: %(default)s)")
    generate.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (default: %(default)s)")
    generate.add_argument("--top-p", type=float, default=1.0, help="(default: %(default)s)")
    generate.add_argument("--top-k", type=int, default=0, help="0 is off (default: %(default)s)")
    generate.add_argument("--n", type=int, default=1, help="continuations of each prompt (default: %(default)s)")
    generate.add_argument("--seed", type=int, help="makes sampled text repeatable")
    generate.add_argument("--stop", action="append", default=[], metavar="TEXT", help="end there (repeatable)")
    generate.add_argument("--with-adapter", metavar="NAME", help="one of those of --adapter (default: the only one)")
    generate.add_argument("--json", action="store_true", help="one JSON object a prompt, with token ids and figures")
    add_engine_flags(generate)

    info = commands.add_parser("info", help="what the engine would run: model, kernels, blocks, concurrency")
    info.add_argument("--json", action="store_true", help="as one JSON object")
    add_engine_flags(info)

    serve = commands.add_parser("serve", help="OpenAI's API over HTTP and websockets, and metrics")
    serve.add_argument("model_argument", nargs="?", metavar="MODEL", help="as --model")
    add_server_flags(serve)
    add_engine_flags(serve)

    top = commands.add_parser("top", help="watch a running server: steps, blocks, requests, latency")
    _add_client_flags(top, "(default: http://127.0.0.1:8000)")
    source = top.add_mutually_exclusive_group()
    source.add_argument("--record", metavar="FILE", help="write the telemetry of the first server as JSON lines")
    source.add_argument("--play", metavar="FILE", help="show what --record, or serve --trace, wrote")
    top.add_argument("--speed", type=float, default=1.0, help="of --play (default: %(default)s)")

    add_tune_commands(commands)

    profile = commands.add_parser("profile", help="where the time of a step goes: of decodes, of a prompt, of both")
    profile.add_argument(
        "--streams", type=count, default=1, metavar="N", help="decodes of a step (default: %(default)s)"
    )
    profile.add_argument("--context", type=count, default=1024, metavar="N", help="of each (default: %(default)s)")
    profile.add_argument("--prefill-tokens", type=count, default=512, metavar="N", help="(default: %(default)s)")
    profile.add_argument("--steps", type=count, default=20, metavar="N", help="of each kind (default: %(default)s)")
    profile.add_argument("--json", action="store_true", help="as one JSON object, in seconds")
    profile.add_argument(
        "--torch-trace", metavar="OUT.json", help="a few steps as torch's profiler sees them, for Perfetto"
    )
    add_engine_flags(profile)
    return parser


def _add_client_flags(parser: argparse.ArgumentParser, default: str) -> None:
    parser.add_argument("--url", action="append", default=[], help=f"a running server; repeatable {default}")
    parser.add_argument("--api-key", metavar="KEY", help="for the servers of --url that want one")
    parser.add_argument("--ascii", action="store_true", help="draw with ASCII alone (default: where it must)")


if __name__ == "__main__":
    sys.exit(main())
