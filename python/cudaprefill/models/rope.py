"""Rotary position embedding: the frequencies of each scaling type and the table that `rope_write_kv` reads.

The types and their parameters are those of Hugging Face configurations: default (RoFormer, arXiv:2104.09864), linear
(positions divided by a factor), llama3 (Llama 3.1's frequency bands), yarn (arXiv:2309.00071) and longrope (a factor
for each pair of dimensions, arXiv:2402.13753).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from cudaprefill.models.errors import UnsupportedModelError


@dataclass(frozen=True, kw_only=True)
class RopeConfig:
    """One rotary embedding. Fields after `rotary_dim` apply to the types named."""

    rope_type: str  # "default", "linear", "llama3", "yarn" or "longrope"
    theta: float
    rotary_dim: int = 0  # the first dimensions of a head, which turn; 0 = all
    factor: float = 1.0  # linear, llama3, yarn: how far the context is stretched
    original_max_position: int = 0  # llama3, yarn, longrope: positions of the pretraining
    low_freq_factor: float = 1.0  # llama3: wavelengths above original / low are divided by the factor
    high_freq_factor: float = 4.0  # llama3: wavelengths below original / high are kept
    beta_fast: float = 32.0  # yarn: rotations in the original context from which a dimension is kept
    beta_slow: float = 1.0  # yarn: rotations up to which a dimension is divided by the factor
    attention_factor: float = 1.0  # yarn, longrope: scales cosines and sines
    truncate: bool = True  # yarn: round the two bounds above outwards to whole dimensions
    short_factors: tuple[float, ...] = ()  # longrope: of each pair, up to the positions of the pretraining
    long_factors: tuple[float, ...] = ()  # longrope: of each pair, where there are more

    def __post_init__(self) -> None:
        if not self.theta > 1:
            raise UnsupportedModelError(f"RoPE theta must be above 1, got {self.theta}")


def inverse_frequencies(rope: RopeConfig, head_size: int, num_positions: int = 0) -> Tensor:
    """Radians per position of each rotated pair, [rotary_dim / 2] float32.

    num_positions: how many will be used; longrope has other frequencies beyond the positions of the pretraining. They
    are chosen once for all tokens: keys in the cache turn no more.
    """
    rotary_dim = rope.rotary_dim or head_size
    exponents = torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim
    wavelengths = rope.theta**exponents  # positions per radian
    plain = 1.0 / wavelengths
    if rope.rope_type == "default":
        return plain
    if rope.rope_type == "linear":
        return plain / rope.factor
    if rope.rope_type == "llama3":
        kept = _llama3_kept_share(rope, plain)
        return (1 - kept) * plain / rope.factor + kept * plain
    if rope.rope_type == "yarn":
        kept = 1 - _yarn_interpolated_share(rope, rotary_dim)
        return 1.0 / (rope.factor * wavelengths) * (1 - kept) + plain * kept
    if rope.rope_type == "longrope":
        factors = rope.long_factors if num_positions > rope.original_max_position else rope.short_factors
        return 1.0 / (torch.tensor(factors, dtype=torch.float32) * wavelengths)
    raise ValueError(f"rope_type must be default, linear, llama3, yarn or longrope, got {rope.rope_type!r}")


def cos_sin_table(inv_freq: Tensor, num_positions: int, attention_factor: float = 1.0) -> Tensor:
    """Cosines (first half of a row) and sines (second half) of every position, [num_positions, rotary_dim] float32."""
    angles = torch.arange(num_positions, dtype=torch.float32)[:, None] * inv_freq
    table = torch.empty(num_positions, 2 * inv_freq.shape[0])
    torch.cos(angles, out=table[:, : inv_freq.shape[0]])
    torch.sin(angles, out=table[:, inv_freq.shape[0] :])
    return table.mul_(attention_factor)


def yarn_attention_factor(factor: float, mscale: float | None = None, mscale_all_dim: float | None = None) -> float:
    """The scale of cosines and sines where a configuration gives none."""

    def magnitude(scale: float) -> float:
        return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0

    if mscale and mscale_all_dim:
        return magnitude(mscale) / magnitude(mscale_all_dim)
    return magnitude(1.0)


def longrope_attention_factor(factor: float, original_max_position: int) -> float:
    """The scale of cosines and sines where a configuration gives none; `factor` is how far the context is stretched."""
    return math.sqrt(1 + math.log(factor) / math.log(original_max_position)) if factor > 1 else 1.0


def _llama3_kept_share(rope: RopeConfig, plain: Tensor) -> Tensor:
    """1 for short wavelengths, 0 for those that the pretraining saw too few turns of, linear in between."""
    turns = rope.original_max_position / (2 * math.pi / plain)
    share = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    return share.clamp(0, 1)


def _yarn_interpolated_share(rope: RopeConfig, rotary_dim: int) -> Tensor:
    """0 for pairs that turn at least beta_fast times in the original context, 1 below beta_slow, linear in between."""

    def pair_that_turns(times: float) -> float:
        return rotary_dim * math.log(rope.original_max_position / (times * 2 * math.pi)) / (2 * math.log(rope.theta))

    first, last = pair_that_turns(rope.beta_fast), pair_that_turns(rope.beta_slow)
    if rope.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, rotary_dim - 1)
    if first == last:
        last += 0.001
    return ((torch.arange(rotary_dim // 2, dtype=torch.float32) - first) / (last - first)).clamp(0, 1)
