"""Settings that fit a kind of use. Each stands for a few flags, no more: what is given explicitly wins.

rag: many questions over the same long texts. Prefix caching makes them cheap, and a middle budget keeps the first
    question over a new text from holding up the others.
code: long prompts whose first token should come soon. The largest budget: a prompt takes few steps.
chat: many people read along. A small budget and a target for the gap between tokens keep every stream steady.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cudaprefill.config import EngineConfig

# A CPU takes for a hundred tokens about as long as a GPU for thousands: its steps are smaller and its target longer.
_PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "rag": {
        "cuda": {"enable_prefix_caching": True, "max_num_batched_tokens": 8192},
        "cpu": {"enable_prefix_caching": True, "max_num_batched_tokens": 512, "itl_target_ms": "auto"},
    },
    "code": {
        "cuda": {"enable_prefix_caching": True, "max_num_batched_tokens": 32768},
        "cpu": {"enable_prefix_caching": True, "max_num_batched_tokens": 2048, "itl_target_ms": "auto"},
    },
    "chat": {
        "cuda": {"enable_prefix_caching": True, "max_num_batched_tokens": 2048, "itl_target_ms": 50.0},
        "cpu": {"enable_prefix_caching": True, "max_num_batched_tokens": 256, "itl_target_ms": 150.0},
    },
}
PRESETS = tuple(_PRESETS)


def preset_settings(name: str, device: str) -> dict[str, Any]:
    """What it stands for on `device` ("cpu", "cuda:1"), by EngineConfig's names."""
    return dict(_PRESETS[name][device.partition(":")[0]])


def with_preset(config: EngineConfig, device: str) -> EngineConfig:
    """The settings that were left open as the preset has them."""
    if config.preset is None:
        return config
    settings = preset_settings(config.preset, device)
    return dataclasses.replace(
        config, **{name: value for name, value in settings.items() if getattr(config, name) is None}
    )
