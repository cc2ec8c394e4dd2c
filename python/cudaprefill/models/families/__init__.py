"""The families that are computed, by their model_type."""

from __future__ import annotations

from cudaprefill.models.families.family import Family
from cudaprefill.models.families.gemma import GEMMA2, GEMMA3
from cudaprefill.models.families.llama import LLAMA, MISTRAL
from cudaprefill.models.families.mixtral import MIXTRAL
from cudaprefill.models.families.phi import PHI3
from cudaprefill.models.families.qwen import QWEN2, QWEN3, QWEN3_MOE

__all__ = ["FAMILIES", "Family"]

_ALL = (LLAMA, MISTRAL, MIXTRAL, QWEN2, QWEN3, QWEN3_MOE, GEMMA2, GEMMA3, PHI3)
FAMILIES = {family.model_type: family for family in _ALL}
