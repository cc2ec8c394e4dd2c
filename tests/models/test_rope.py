"""Frequencies and tables equal transformers', whichever form of configuration they are read from."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from cudaprefill.models.hf_config import parse_hf_config
from cudaprefill.models.rope import RopeConfig, cos_sin_table, inverse_frequencies

HEAD_SIZES = st.sampled_from([64, 80, 96, 128, 256])
THETAS = st.sampled_from([500.0, 1e4, 1e5, 5e5, 1e6]) | st.floats(100.0, 1e7)
FACTORS = st.sampled_from([1.0, 4.0, 8.0, 32.0]) | st.floats(1.0, 64.0)
LENGTHS = st.integers(16, 131072)


def config_json(head_size: int, max_position: int = 2048, **rope: Any) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 100,
        "hidden_size": 2 * head_size,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": max_position,
        **rope,
    }


def both_forms(parameters: dict[str, Any]) -> list[dict[str, Any]]:
    """As transformers 5 writes it, and as it was written before, with either name of the type."""
    theta, scaling = parameters["rope_theta"], {k: v for k, v in parameters.items() if k != "rope_theta"}
    rope_type = scaling["rope_type"]
    old = {k: v for k, v in scaling.items() if k != "rope_type"} | {"type": rope_type}
    return [
        {"rope_parameters": parameters},
        {"rope_theta": theta, "rope_scaling": None if rope_type == "default" else scaling},
        {"rope_theta": theta, "rope_scaling": None if rope_type == "default" else old},
    ]


def assert_equal_to_transformers(head_size: int, max_position: int, parameters: dict[str, Any]) -> None:
    for form in both_forms(parameters):
        json = config_json(head_size, max_position, **form)
        reference = LlamaConfig(**json)
        if parameters["rope_type"] == "default":
            expected, scale = LlamaRotaryEmbedding.compute_default_rope_parameters(reference)
        else:
            expected, scale = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](reference)
        rope = parse_hf_config(json).layers[0].rope
        torch.testing.assert_close(inverse_frequencies(rope, head_size), expected, rtol=2e-7, atol=0)
        assert rope.attention_factor == pytest.approx(scale, rel=1e-12)


@given(HEAD_SIZES, THETAS)
def test_default(head_size: int, theta: float) -> None:
    assert_equal_to_transformers(head_size, 2048, {"rope_type": "default", "rope_theta": theta})


@given(HEAD_SIZES, THETAS, FACTORS)
def test_linear(head_size: int, theta: float, factor: float) -> None:
    assert_equal_to_transformers(head_size, 2048, {"rope_type": "linear", "rope_theta": theta, "factor": factor})


@given(HEAD_SIZES, THETAS, FACTORS, LENGTHS, st.floats(0.5, 2.0), st.floats(2.5, 8.0))
def test_llama3(head_size: int, theta: float, factor: float, original: int, low: float, high: float) -> None:
    parameters = {
        "rope_type": "llama3",
        "rope_theta": theta,
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }
    assert_equal_to_transformers(head_size, 2 * original, parameters)


@given(
    HEAD_SIZES,
    THETAS,
    FACTORS,
    LENGTHS,
    st.fixed_dictionaries(
        {},
        optional={
            "beta_fast": st.floats(8.0, 64.0),
            "beta_slow": st.floats(0.5, 4.0),
            "attention_factor": st.floats(0.5, 2.0),
            "mscale": st.floats(0.5, 2.0),
            "mscale_all_dim": st.floats(0.5, 2.0),
            "truncate": st.booleans(),
        },
    ),
)
def test_yarn(head_size: int, theta: float, factor: float, original: int, optional: dict[str, Any]) -> None:
    parameters = {
        "rope_type": "yarn",
        "rope_theta": theta,
        "factor": factor,
        "original_max_position_embeddings": original,
        **optional,
    }
    assert_equal_to_transformers(head_size, original, parameters)


def test_yarn_infers_its_factor_from_the_two_lengths() -> None:
    parameters = {"rope_type": "yarn", "rope_theta": 1e4, "factor": None, "original_max_position_embeddings": 512}
    rope = parse_hf_config(config_json(64, 2048, rope_parameters=parameters)).layers[0].rope
    assert rope.factor == 4.0


@pytest.mark.parametrize("attention_factor", [1.0, 1.25])
def test_table_holds_cosines_then_sines_of_every_position(attention_factor: float) -> None:
    inv_freq = inverse_frequencies(RopeConfig(rope_type="default", theta=1e4), 64)
    table = cos_sin_table(inv_freq, 3000, attention_factor)
    assert table.shape == (3000, 64)
    assert table.dtype == torch.float32
    rotary = LlamaRotaryEmbedding(LlamaConfig(**config_json(64, rope_theta=1e4)))
    rotary.attention_scaling = attention_factor
    cos, sin = rotary(torch.zeros(1), torch.arange(3000)[None])
    torch.testing.assert_close(table, torch.cat([cos[0, :, :32], sin[0, :, :32]], dim=1), rtol=0, atol=1e-6)


def test_an_unknown_type_is_named() -> None:
    with pytest.raises(ValueError, match="'dynamic'"):
        inverse_frequencies(RopeConfig(rope_type="dynamic", theta=1e4), 64)
