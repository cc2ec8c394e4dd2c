"""The engine's settings as flags, named as vLLM names them."""

from __future__ import annotations

import argparse
from dataclasses import fields

from cudaprefill.config import (
    BLOCK_SIZES,
    DTYPES,
    KV_CACHE_DTYPES,
    LINEAR_MATHS,
    EngineConfig,
    flags_of,
    parse_bytes,
    parse_count,
    parse_itl_target,
)
from cudaprefill.presets import PRESETS, preset_settings
from cudaprefill.protocol.itl_target import ItlTarget


def add_engine_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("engine")
    add = group.add_argument
    add(
        "--preset",
        choices=PRESETS,
        help="settings for long shared texts, for long prompts, or for many readers; flags given beside it win",
    )
    add(
        "--model", metavar="PATH", help="Hugging Face folder or GGUF file (default: the packaged SmolLM2-135M-Instruct)"
    )
    add(
        "--adapter",
        action="append",
        dest="adapters",
        metavar="NAME=DIR",
        help="an adapter as PEFT saves it, which requests name as their model; repeatable",
    )
    add("--dtype", choices=DTYPES, default="auto", help="of weights and activations (default: %(default)s)")
    add(
        "--linear-math",
        choices=LINEAR_MATHS,
        default="auto",
        help="of weights in a GGUF file's blocks, on a CPU: int8 is fastest, int16 nearly exact, float32 exact "
        "(default: int16)",
    )
    add("--device", default="auto", help="auto, cpu, cuda or cuda:N (default: %(default)s)")
    add("--block-size", type=int, choices=BLOCK_SIZES, default=16, help="KV slots of a block (default: %(default)s)")
    add(
        "--enable-prefix-caching",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="share full blocks of equal prefixes (default: on)",
    )
    add(
        "--max-num-batched-tokens",
        type=count,
        metavar="N",
        help="token budget of a step: up for TTFT, down for ITL (default: 8192 on a GPU, 512 on a CPU)",
    )
    add("--max-num-seqs", type=count, metavar="N", help="requests that run at once (default: 256)")
    add("--max-model-len", type=count, metavar="N", help="prompt plus output of a request (default: the model's)")
    add(
        "--long-prefill-token-threshold",
        type=count,
        default=0,
        metavar="N",
        help="most tokens of one prompt in a step while others wait (default: automatic)",
    )
    add(
        "--itl-target-ms",
        type=itl_target,
        metavar="MS",
        help="cut chunks so that a step with running streams lasts no longer; 0: no target (default: auto on a CPU, "
        "where 150 ms hold for whoever reads when a prompt arrives; no target on a GPU)",
    )
    add("--max-num-queued-reqs", type=count, metavar="N", help="refuse requests when N wait (default: no limit)")
    add(
        "--kv-cache-dtype",
        choices=KV_CACHE_DTYPES,
        default="auto",
        help="fp8: e4m3 with a scale for each KV head (default: as the activations; with --linear-math int16 "
        "float16, with int8 bfloat16)",
    )
    add("--kv-cache-memory", type=memory, metavar="SIZE", help="KV cache on a CPU, e.g. 4GiB (default: 2GiB)")
    add(
        "--gpu-memory-utilization",
        type=float,
        default=0.90,
        metavar="SHARE",
        help="of a GPU's memory for weights, activations and KV (default: %(default)s)",
    )
    add("--enforce-eager", action="store_true", help="on a GPU: decode without CUDA graphs (default: with them)")
    add("--trace", metavar="FILE", help="write every event to FILE, for explain, replay and advise (default: no trace)")
    add(
        "--trace-file-size",
        type=memory,
        default=256 * 2**20,
        metavar="SIZE",
        help="then FILE becomes FILE.1 (default: 256MiB)",
    )
    add("--trace-files", type=count, default=4, metavar="N", help="how many are kept (default: %(default)s)")
    add("--otlp-traces-endpoint", metavar="URL", help="send OpenTelemetry spans of requests there, by OTLP over HTTP")
    add("--threads", type=int, metavar="N", help="CPU threads (default: all cores of this process)")


def preset_line(config: EngineConfig, device: str) -> str | None:
    """What the preset stands for, for a person; None without one."""
    if config.preset is None:
        return None
    return f"--preset {config.preset} stands for {flags_of(preset_settings(config.preset, device))}"


def engine_config(flags: argparse.Namespace) -> EngineConfig:
    """Raises ValueError naming the setting that is wrong."""
    settings = {field.name: getattr(flags, field.name) for field in fields(EngineConfig)}
    return EngineConfig(**settings | {"adapters": _adapters(flags.adapters or [])})


def engine_arguments(flags: argparse.Namespace) -> list[str]:
    """The engine flags that are not as they would be anyway, as a command line."""
    parser = argparse.ArgumentParser()
    add_engine_flags(parser)
    defaults = parser.parse_args([])
    arguments = [f"--adapter={adapter}" for adapter in flags.adapters or ()]
    for field in fields(EngineConfig):
        value, name = getattr(flags, field.name), field.name.replace("_", "-")
        if name == "adapters" or value == getattr(defaults, field.name):
            continue
        if isinstance(value, bool):
            arguments.append(f"--{name}" if value else f"--no-{name}")
        else:
            arguments.append(f"--{name}={value}")
    return arguments


def chosen_adapter(flags: argparse.Namespace) -> str | None:
    """The adapter that answers: that of --with-adapter, or the only one. Raises ValueError for an unknown one."""
    names = list(_adapters(flags.adapters or []))
    if flags.with_adapter is None:
        return names[0] if len(names) == 1 else None
    if flags.with_adapter not in names:
        given = f"only {', '.join(names)}" if names else "none"
        raise ValueError(f"--with-adapter {flags.with_adapter} is not one of --adapter, which names {given}")
    return str(flags.with_adapter)


def _adapters(flags: list[str]) -> dict[str, str]:
    adapters: dict[str, str] = {}
    for flag in flags:
        name, separator, folder = flag.partition("=")
        if not (name and separator and folder):
            raise ValueError(f"--adapter must be NAME=DIR, got {flag!r}")
        if name in adapters:
            raise ValueError(f"--adapter {name} is given twice: {adapters[name]} and {folder}")
        adapters[name] = folder
    return adapters


def count(text: str) -> int:
    try:
        return parse_count(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def itl_target(text: str) -> ItlTarget:
    try:
        return parse_itl_target(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def memory(text: str) -> int:
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
