"""Tiny random models of each family, built by transformers: the reference of the model and engine tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    Phi3Config,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)
from transformers.utils import logging

logging.set_verbosity_error()
logging.disable_progress_bar()

_CONFIGS: dict[str, type[PretrainedConfig]] = {
    "gemma2": Gemma2Config,
    "gemma3_text": Gemma3TextConfig,
    "llama": LlamaConfig,
    "mistral": MistralConfig,
    "mixtral": MixtralConfig,
    "phi3": Phi3Config,
    "qwen2": Qwen2Config,
    "qwen3": Qwen3Config,
    "qwen3_moe": Qwen3MoeConfig,
}
_SIZES = {
    "hidden_size": 96,
    "intermediate_size": 112,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 131,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}

# Scores and logits large enough for the caps of Gemma to matter; Phi-3 has its head size as a quotient.
_GEMMA = {"query_pre_attn_scalar": 50, "sliding_window": 20, "final_logit_softcapping": 3.0, "pad_token_id": 0}
_SIZES_OF_FAMILY: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": None},
    "mixtral": {"num_local_experts": 5, "num_experts_per_tok": 2},
    "qwen3_moe": {"num_experts": 9, "num_experts_per_tok": 3, "moe_intermediate_size": 48, "mlp_only_layers": [1]},
    "gemma2": {**_GEMMA, "attn_logit_softcapping": 2.0},
    "gemma3_text": {**_GEMMA, "sliding_window_pattern": 2},
    "phi3": {"hidden_size": 384, "pad_token_id": 0, "original_max_position_embeddings": 256},
}

# Rotary embeddings whose scaling acts within 256 positions.
ROPE = {
    "default": {"rope_type": "default", "rope_theta": 1e4},
    "linear": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 1e4,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64},
    "longrope": {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "short_factor": [1.0 + i / 32 for i in range(32)],
        "long_factor": [1.0 + i / 4 for i in range(32)],
    },
}


def tiny_model(family: str, seed: int = 0, **overrides: Any) -> PreTrainedModel:
    """A float32 model whose biases, norms and attention all matter. `overrides` are keys of config.json."""
    config = _CONFIGS[family](**{**_SIZES, **_SIZES_OF_FAMILY.get(family, {}), **overrides})
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            values = torch.randn(weight.shape, generator=generator)
            if weight.dim() >= 2:
                weight.copy_(0.3 * values if "embed" in name else values * 1.5 / weight.shape[-1] ** 0.5)
            elif name.endswith("bias"):
                weight.copy_(0.3 * values)
            else:
                weight.copy_(0.3 * values if family.startswith("gemma") else 1 + 0.3 * values)
    model.tie_weights()
    return model


def save_tiny_model(folder: Path, family: str, seed: int = 0, **overrides: Any) -> PreTrainedModel:
    """Writes config.json, generation_config.json and model.safetensors into `folder` and returns the model."""
    model = tiny_model(family, seed, **overrides)
    model.save_pretrained(folder)
    return model


def random_tokens(count: int, seed: int = 0, vocab_size: int = _SIZES["vocab_size"]) -> list[int]:
    return torch.randint(vocab_size, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


@torch.inference_mode()
def reference_logits(model: PreTrainedModel, token_ids: list[int]) -> torch.Tensor:
    """Logits that transformers gives for every position of one sequence, [len(token_ids), V]."""
    return model(torch.tensor([token_ids])).logits[0].float()
