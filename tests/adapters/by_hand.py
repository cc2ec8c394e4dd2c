"""Adapter files written without PEFT, and a model that is nothing but its sizes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from cudaprefill.adapters import AdapterTarget
from cudaprefill.models.config import LayerConfig, ModelConfig
from cudaprefill.models.rope import RopeConfig

MODEL = ModelConfig(
    family="llama",
    layers=(LayerConfig(rope=RopeConfig(rope_type="default", theta=1e4)),) * 2,
    hidden_size=96,
    intermediate_size=112,
    num_q_heads=6,
    num_kv_heads=2,
    head_size=64,
    vocab_size=131,
    max_model_len=256,
    rms_norm_eps=1e-5,
)
TARGET = AdapterTarget(MODEL, torch.device("cpu"), torch.float32, torch.float32, MODEL.max_model_len)

PROMPT_CONFIG = {"peft_type": "PROMPT_TUNING", "task_type": "CAUSAL_LM", "token_dim": 96, "num_layers": 2}
PREFIX_CONFIG = {
    "peft_type": "PREFIX_TUNING",
    "task_type": "CAUSAL_LM",
    "token_dim": 128,
    "num_layers": 2,
    "num_attention_heads": 2,
}


def write_adapter(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


def write_prompt_adapter(
    folder: Path, num_tokens: int = 20, seed: int = 0, *, hidden_size: int = MODEL.hidden_size, **config: Any
) -> Path:
    """Prompt tuning with random embeddings."""
    rows = torch.randn(num_tokens, hidden_size, generator=torch.Generator().manual_seed(seed))
    told = {**PROMPT_CONFIG, "token_dim": hidden_size, "num_virtual_tokens": num_tokens, **config}
    return write_adapter(folder, told, {"prompt_embeddings": rows})


def write_prefix_adapter(folder: Path, num_tokens: int = 20, **config: Any) -> Path:
    """Prefix tuning with random keys and values."""
    rows = torch.randn(num_tokens, 2 * 2 * 128, generator=torch.Generator().manual_seed(0))
    return write_adapter(
        folder, {**PREFIX_CONFIG, "num_virtual_tokens": num_tokens, **config}, {"prompt_embeddings": rows}
    )
