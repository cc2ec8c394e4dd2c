"""`cudaprefill info`: what the engine would run."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from cudaprefill.cli.engine_flags import engine_config
from cudaprefill.cli.progress import loading_model
from cudaprefill.config import format_bytes
from cudaprefill.engine.factory import EngineInfo, build_engine
from cudaprefill.protocol.itl_target import itl_target_text


def run(flags: argparse.Namespace) -> int:
    with loading_model() as progress:
        info = build_engine(engine_config(flags), progress).info
    print(json.dumps(asdict(info)) if flags.json else _table(info))
    return 0


def _table(info: EngineInfo) -> str:
    rows = {
        "model": f"{info.model} ({info.family}, {info.num_parameters:,} parameters, {info.dtype})",
        "linear math": info.linear_math,
        "device": f"{info.device}, {info.kernels} kernels, {info.threads} threads",
        "KV cache": f"{info.num_blocks:,} blocks of {info.block_size} tokens = {info.num_slots:,} tokens, "
        f"{format_bytes(info.num_blocks * info.block_bytes)} of {info.kv_cache_dtype} "
        f"({format_bytes(info.block_bytes)} a block)",
        "concurrency": f"{info.concurrency:.1f} requests of {info.max_model_len:,} tokens, at most {info.max_num_seqs}",
        "token budget": f"{info.max_num_batched_tokens:,} tokens a step",
        "ITL target": itl_target_text(info.itl_target_ms),
        "prefix cache": "on" if info.enable_prefix_caching else "off",
    }
    if info.kv_scales is not None:
        rows["KV scales"] = info.kv_scales
    return "\n".join(f"{name:13} {value}" for name, value in rows.items())
