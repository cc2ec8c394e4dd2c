"""LoRA adapters as PEFT saves them, of every form that is served, and changes of one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig
from safetensors.torch import load_file, save_file
from torch import Tensor

_ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
SEVEN = [*_ATTENTION, "gate_proj", "up_proj", "down_proj"]


def lora(rank: int = 8, **options: Any) -> LoraConfig:
    """Both matrices are random: by default PEFT begins with a B of zeros."""
    return LoraConfig(r=rank, task_type="CAUSAL_LM", init_lora_weights=False, **options)


CONFIGS: dict[str, LoraConfig] = {
    "seven": lora(16, lora_alpha=16, target_modules=SEVEN),
    "q and v": lora(3, lora_alpha=6, target_modules=["q_proj", "v_proj"]),
    "all linear": lora(8, lora_alpha=3, target_modules="all-linear", use_rslora=True),
    "a pattern": lora(64, lora_alpha=30, target_modules=r"model\.layers\.1\.(self_attn\.k|mlp\.up)_proj"),
    "many ranks": lora(
        5,
        target_modules=SEVEN,
        rank_pattern={r"layers\.0\.mlp\.(gate|down)_proj": 33, "k_proj": 1},
        alpha_pattern={"self_attn.o_proj": 3, "k_proj": 2},
    ),
    "one layer": lora(7, target_modules=[*_ATTENTION, "mlp.down_proj"], layers_to_transform=1),
    "all but two": lora(2, target_modules=SEVEN, exclude_modules=["k_proj", "model.layers.0.mlp.up_proj"]),
}


def changed(
    source: Path,
    folder: Path,
    config: Callable[[dict[str, Any]], object] | None = None,
    tensors: Callable[[dict[str, Tensor]], object] | None = None,
) -> Path:
    """A copy of an adapter in `folder`, after what the functions do to its configuration and its tensors."""
    shutil.copytree(source, folder)
    if config is not None:
        path = folder / "adapter_config.json"
        values = json.loads(path.read_text())
        config(values)
        path.write_text(json.dumps(values))
    if tensors is not None:
        path = folder / "adapter_model.safetensors"
        stored = load_file(path)
        tensors(stored)
        save_file(stored, path)
    return folder


def convert_to(dtype: torch.dtype) -> Callable[[dict[str, Tensor]], None]:
    """Rounds all tensors to a dtype."""

    def convert(tensors: dict[str, Tensor]) -> None:
        tensors.update({name: tensor.to(dtype) for name, tensor in tensors.items()})

    return convert
