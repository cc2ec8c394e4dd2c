"""`cudaprefill serve`: the server on an engine in this process."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from dataclasses import fields, replace

from cudaprefill.cli.engine_flags import engine_config, preset_line
from cudaprefill.cli.progress import loading_model
from cudaprefill.config import EngineConfig
from cudaprefill.garbage import uncollected
from cudaprefill.server.config import ServerConfig


def run(flags: argparse.Namespace) -> int:
    if flags.model_argument is not None and flags.model is not None:
        raise ValueError(f"the model is given twice: {flags.model_argument} and --model {flags.model}")
    flags.model = flags.model_argument or flags.model
    engine, config = engine_config(flags), server_config(flags)
    logging.basicConfig(format="cudaprefill: %(message)s", level=logging.WARNING)
    if config.access_log:
        logging.getLogger("uvicorn.access").setLevel(logging.INFO)
    return _serve(config, engine, flags.exit_with_stdin)


def server_config(flags: argparse.Namespace) -> ServerConfig:
    """Raises ValueError naming the setting that is wrong."""
    from_environment = os.environ.get("CUDAPREFILL_API_KEY")
    same = {
        field.name: getattr(flags, field.name)
        for field in fields(ServerConfig)
        if field.name not in ("api_keys", "served_model_names")
    }
    return ServerConfig(
        api_keys=tuple(flags.api_key or ([from_environment] if from_environment else [])),
        served_model_names=tuple(flags.served_model_name or ([flags.model] if flags.model else [])),
        **same,
    )


def _serve(config: ServerConfig, engine: EngineConfig, exit_with_stdin: bool) -> int:
    # What can be wrong without the model is found out before it is loaded.
    with uncollected():
        from cudaprefill.engine.factory import EngineParts, build_engine
        from cudaprefill.server.run import bound_socket, serve
        from cudaprefill.server.tls import check_certificate

    check_certificate(config)
    bound = bound_socket(config.host, config.port)

    def build() -> EngineParts:
        with loading_model() as progress:
            parts = build_engine(engine, progress)
        if line := preset_line(engine, parts.info.device):
            print(f"cudaprefill: {line}", file=sys.stderr)
        print(f"cudaprefill: {parts.info}", file=sys.stderr, flush=True)
        return replace(parts, idle_work=parts.engine.model_runner.kv_cache.populate_in_pieces())

    first = [build()]  # in the main thread, where Ctrl-C ends it
    name = config.served_model_names[0] if config.served_model_names else first[0].info.model
    return serve(
        config,
        lambda: first.pop() if first else build(),
        bound,
        announce=lambda url: print(f"cudaprefill: serving {name} on {url}", flush=True),
        exit_with_stdin=exit_with_stdin,
    )
