"""The server's settings as flags, named as vLLM names them where it has them."""

from __future__ import annotations

import argparse
from dataclasses import fields

from cudaprefill.cli.engine_flags import count, memory
from cudaprefill.server.config import ServerConfig


def add_server_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("server")
    add = group.add_argument
    default = {field.name: field.default for field in fields(ServerConfig)}
    add("--host", default=default["host"], help="address to listen on (default: %(default)s, this machine alone)")
    add("--port", type=int, default=default["port"], help="0 takes a free one (default: %(default)s)")
    add(
        "--api-key",
        action="append",
        metavar="KEY",
        help="clients must send it; repeatable; or one in the environment as CUDAPREFILL_API_KEY",
    )
    add("--allow-unauthenticated", action="store_true", help="listen on any --host without a key")
    add("--ssl-certfile", metavar="FILE", help="speak TLS, with this certificate (PEM, with those that vouch for it)")
    add("--ssl-keyfile", metavar="FILE", help="its key (default: in the file of the certificate)")
    add(
        "--served-model-name",
        nargs="+",
        metavar="NAME",
        help="what clients may call the model, the first in answers (default: as --model)",
    )
    add(
        "--max-connections",
        type=count,
        metavar="N",
        help="of all clients at once (default: what the limit of open files allows)",
    )
    add(
        "--receive-timeout",
        type=float,
        default=default["receive_timeout"],
        metavar="SECONDS",
        help="what a request may take to come, head and body (default: %(default)s)",
    )
    add(
        "--max-body-size",
        type=memory,
        default=default["max_body_size"],
        metavar="SIZE",
        help="longest body of a request (default: 8MiB)",
    )
    add(
        "--max-websocket-message-size",
        type=memory,
        default=default["max_websocket_message_size"],
        metavar="SIZE",
        help="longest message of a websocket client (default: 1MiB)",
    )
    add(
        "--max-unread-output",
        type=memory,
        default=default["max_unread_output"],
        metavar="SIZE",
        help="abort a stream when more than this waits for its reader (default: 1MiB)",
    )
    add(
        "--max-responses-per-connection",
        type=count,
        default=default["max_responses_per_connection"],
        metavar="N",
        help="Responses that one websocket may have at once (default: %(default)s)",
    )
    add(
        "--max-stored-responses",
        type=count,
        default=default["max_stored_responses"],
        metavar="N",
        help="finished Responses that later ones can continue (default: %(default)s)",
    )
    add(
        "--max-stored-response-bytes",
        type=memory,
        default=default["max_stored_response_bytes"],
        metavar="SIZE",
        help="what these may take in memory (default: 256MiB)",
    )
    add(
        "--shutdown-timeout",
        type=float,
        default=default["shutdown_timeout"],
        metavar="SECONDS",
        help="what running requests get after SIGTERM or Ctrl-C (default: %(default)s)",
    )
    add(
        "--restart-engine",
        action="store_true",
        help="start the engine anew when it has died (default: end the server with status 1)",
    )
    add(
        "--stuck-after",
        type=float,
        default=default["stuck_after"],
        metavar="SECONDS",
        help="a step that lasts longer makes /health answer 503 (default: %(default)s)",
    )
    add(
        "--allow-runtime-adapters",
        metavar="DIR",
        help="let requests load adapters from inside DIR and unload them (default: only those of --adapter)",
    )
    add("--access-log", action="store_true", help="a line for each request on standard error, without what it asked")
    add("--exit-with-stdin", action="store_true", help="end when standard input closes, with the process behind it")
