"""RopeConfig from a config.json: `rope_parameters` (transformers 5) or `rope_scaling` with `rope_theta` beside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cudaprefill.models.errors import UnsupportedModelError
from cudaprefill.models.fields import Fields
from cudaprefill.models.rope import RopeConfig, longrope_attention_factor, yarn_attention_factor
from cudaprefill.sampling_params import show

_ORIGINAL = "original_max_position_embeddings"
_KEYS: dict[str, set[str]] = {
    "default": set(),
    "linear": {"factor"},
    "llama3": {"factor", "low_freq_factor", "high_freq_factor", _ORIGINAL},
    "yarn": {"factor", _ORIGINAL, "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"},
    "longrope": {"factor", _ORIGINAL, "attention_factor", "short_factor", "long_factor"},
}
_KEYS_OF_ALL = {"rope_type", "type", "rope_theta", "partial_rotary_factor"}


def read_rope(
    fields: Fields,
    head_size: int,
    types: tuple[str, ...],
    *,
    theta: float = 10000.0,
    rotates_partly: bool = False,
) -> RopeConfig:
    """The one rotary embedding of a model. `types` are those that its family knows; `theta` as in `parse_rope`."""
    key = "rope_scaling" if fields.get("rope_scaling") else "rope_parameters"
    return parse_rope(fields, key, fields.mapping(key), head_size, types, theta=theta, rotates_partly=rotates_partly)


def parse_rope(
    fields: Fields,
    key: str,
    values: Mapping[str, Any],
    head_size: int,
    types: tuple[str, ...],
    *,
    theta: float = 10000.0,
    rotates_partly: bool = False,
) -> RopeConfig:
    """`values` are what config.json has under `key`; `theta` counts where neither it nor `rope_theta` is there."""
    rope = Fields(values, f"config.json: {key}")
    rope_type = rope.optional_text("rope_type") or rope.optional_text("type") or "default"
    rope_type = {"su": "longrope"}.get(rope_type, rope_type)  # Phi-3's first name for it
    if rope_type not in types:
        raise rope.unsupported("rope_type", rope_type, *types)
    for name in set(rope.values) - _KEYS[rope_type] - _KEYS_OF_ALL:
        value = rope.get(name)
        if value is not None:
            raise UnsupportedModelError(f"{rope.where}: {name} = {show(value)} is unknown for type {rope_type!r}")

    theta = rope.number("rope_theta", fields.number("rope_theta", theta))
    rotary_dim = _rotary_dim(fields, rope, head_size, rotates_partly)
    max_position = fields.integer("max_position_embeddings")
    original = fields.integer(_ORIGINAL, rope.integer(_ORIGINAL, max_position))
    if rope_type == "linear":
        return RopeConfig(rope_type=rope_type, theta=theta, rotary_dim=rotary_dim, factor=rope.number("factor"))
    if rope_type == "llama3":
        low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
        if high <= low:
            raise UnsupportedModelError(f"{rope.where}: high_freq_factor must be above {low}, got {high}")
        return RopeConfig(
            rope_type=rope_type,
            theta=theta,
            rotary_dim=rotary_dim,
            factor=rope.number("factor"),
            original_max_position=original,
            low_freq_factor=low,
            high_freq_factor=high,
        )
    if rope_type == "yarn":
        factor = rope.number("factor", max_position / original)
        inferred = yarn_attention_factor(factor, _mscale(rope, "mscale"), _mscale(rope, "mscale_all_dim"))
        return RopeConfig(
            rope_type=rope_type,
            theta=theta,
            rotary_dim=rotary_dim,
            factor=factor,
            original_max_position=original,
            beta_fast=rope.number("beta_fast", 32.0),
            beta_slow=rope.number("beta_slow", 1.0),
            attention_factor=rope.number("attention_factor", inferred),
            truncate=rope.flag("truncate", True),
        )
    if rope_type == "longrope":
        if original < 2:  # its logarithm is a divisor
            raise UnsupportedModelError(f"{rope.where}: {_ORIGINAL} must be at least 2, got {original}")
        factor = rope.number("factor", max_position / original)
        num_pairs = (rotary_dim or head_size) // 2
        return RopeConfig(
            rope_type=rope_type,
            theta=theta,
            rotary_dim=rotary_dim,
            original_max_position=original,
            attention_factor=rope.number("attention_factor", longrope_attention_factor(factor, original)),
            short_factors=_factors(rope, "short_factor", num_pairs),
            long_factors=_factors(rope, "long_factor", num_pairs),
        )
    return RopeConfig(rope_type=rope_type, theta=theta, rotary_dim=rotary_dim)


def _mscale(rope: Fields, key: str) -> float | None:
    """0 is as none."""
    return rope.number(key) if rope.get(key) else None


def _rotary_dim(fields: Fields, rope: Fields, head_size: int, rotates_partly: bool) -> int:
    """0 where all dimensions of a head turn."""
    if not rotates_partly:
        rope.only("partial_rotary_factor", 1.0)
        return 0
    share = rope.number("partial_rotary_factor", fields.number("partial_rotary_factor", 1.0))
    rotary_dim = int(head_size * share)
    if rotary_dim % 2 or not 0 < rotary_dim <= head_size:
        raise UnsupportedModelError(
            f"{rope.where}: partial_rotary_factor {share} of the head size {head_size} must give an even number of "
            f"dimensions up to {head_size}, got {rotary_dim}"
        )
    return rotary_dim if rotary_dim < head_size else 0


def _factors(rope: Fields, key: str, count: int) -> tuple[float, ...]:
    values = rope.get(key)
    if not isinstance(values, list) or len(values) != count:
        given = f"{len(values)} of them" if isinstance(values, list) else show(values)
        raise UnsupportedModelError(f"{rope.where}: {key} must list {count} numbers, one for each pair, got {given}")
    return tuple(Fields({key: value}, rope.where).number(key) for value in values)
