"""The families that are computed, by their model_type."""

from __future__ import annotations

from cudaprefill.models.families.family import Family
from cudaprefill.models.families.gemma import GEMMA2, GEMMA3
from cudaprefill.models.families.llama import LLAMA, MISTRAL
from cudaprefill.models.families.mixtral import MIXTRAL
from cudaprefill.models.families.phi import PHI3
from cudaprefill.models.families.qwen import QWEN2, QWEN3, QWEN3_MOE

__all__ = ["FAMILIES", "NOT_COMPUTED", "Family"]

_ALL = (LLAMA, MISTRAL, MIXTRAL, QWEN2, QWEN3, QWEN3_MOE, GEMMA2, GEMMA3, PHI3)
FAMILIES = {family.model_type: family for family in _ALL}

# Why others that people ask for are refused, by their model_type.
NOT_COMPUTED = {
    "gpt_oss": "its attention has sinks, a logit of each head beside those of the keys, which the attention kernels do "
    "not take, and its experts have biases and a clamped gate",
    "gemma3": "it has a vision tower; its text model alone, Gemma3ForCausalLM with model_type gemma3_text, is computed",
    "gemma": "only Gemma 2 and Gemma 3 are computed",
    "phimoe": "its router is not a softmax over all experts",
    "phi4mm": "it has towers for images and sound",
    "qwen2_moe": "its layers have a shared expert beside the chosen ones",
    "qwen3_next": "its layers have linear attention",
    "deepseek_v2": "its attention keeps latent vectors instead of keys and values",
    "deepseek_v3": "its attention keeps latent vectors instead of keys and values",
}
