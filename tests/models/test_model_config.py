"""A configuration is read in full, or refused with the key and the value that is not supported."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest
from transformers import Gemma3TextConfig

from cudaprefill.models import ModelConfig, UnsupportedModelError, WeightsError, read_model_config
from cudaprefill.models.config import ExpertsConfig, LayerConfig
from cudaprefill.models.hf_config import parse_hf_config
from cudaprefill.models.rope import RopeConfig
from cudaprefill.models.weights import expected_tensors

BASE = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
}
LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **BASE}
MISTRAL = {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": None, **BASE}
QWEN2 = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", **BASE}
QWEN3 = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 64, **BASE}
_GEMMA = {**{key: BASE[key] for key in BASE if key != "rope_theta"}, "head_dim": 64, "sliding_window": 512}
GEMMA2 = {"architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", **_GEMMA}
GEMMA3 = {"architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", **_GEMMA}
MIXTRAL = {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", **BASE}
QWEN3_MOE = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "head_dim": 64, **BASE}
PHI3 = {"architectures": ["Phi3ForCausalLM"], "model_type": "phi3", **BASE, "max_position_embeddings": 4096}


def test_every_field_of_a_llama() -> None:
    assert parse_hf_config({**LLAMA, "bos_token_id": 1, "eos_token_id": 2}) == ModelConfig(
        family="llama",
        layers=(LayerConfig(rope=RopeConfig(rope_type="default", theta=10000.0)),) * 4,
        hidden_size=256,
        intermediate_size=512,
        num_q_heads=4,
        num_kv_heads=2,
        head_size=64,
        vocab_size=1000,
        max_model_len=2048,
        rms_norm_eps=1e-6,
        bos_token_id=1,
        eos_token_ids=(2,),
    )


def test_what_tells_the_families_apart() -> None:
    def traits(config: dict[str, Any]) -> tuple[str, bool, bool, bool, bool]:
        parsed = parse_hf_config(config)
        return parsed.family, parsed.qkv_bias, parsed.o_bias, parsed.mlp_bias, parsed.qk_norm

    assert traits(LLAMA) == ("llama", False, False, False, False)
    assert traits({**LLAMA, "attention_bias": True, "mlp_bias": True}) == ("llama", True, True, True, False)
    assert traits(MISTRAL) == ("mistral", False, False, False, False)
    assert traits(QWEN2) == ("qwen2", True, False, False, False)
    assert traits(QWEN3) == ("qwen3", False, False, False, True)
    assert traits({**QWEN3, "attention_bias": True}) == ("qwen3", True, True, False, True)


def test_the_family_may_come_from_model_type_alone() -> None:
    assert parse_hf_config({**BASE, "model_type": "qwen2"}).family == "qwen2"


def test_an_explicit_head_size_wins_over_the_quotient() -> None:
    assert parse_hf_config({**LLAMA, "head_dim": 128}).head_size == 128


@pytest.mark.parametrize(
    ("config", "window"),
    [
        ({**MISTRAL, "sliding_window": 100}, 100),
        ({**MISTRAL, "sliding_window": None}, 0),
        ({**MISTRAL, "sliding_window": 2048}, 0),  # as long as the context: hides nothing
        ({**{k: v for k, v in MISTRAL.items() if k != "sliding_window"}, "max_position_embeddings": 8192}, 4096),
        ({**QWEN2, "sliding_window": 100}, 0),
        ({**QWEN2, "sliding_window": 100, "use_sliding_window": False}, 0),
        ({**QWEN2, "sliding_window": 100, "use_sliding_window": True, "max_window_layers": 4}, 0),
        ({**QWEN2, "sliding_window": 100, "use_sliding_window": True, "max_window_layers": 0}, 100),
        ({**QWEN3, "sliding_window": 9000, "use_sliding_window": True, "max_window_layers": 2}, 0),
        ({**QWEN3, "layer_types": ["full_attention"] * 4}, 0),
        ({**QWEN3, "layer_types": ["sliding_attention"] * 4, "use_sliding_window": True, "sliding_window": 9}, 9),
    ],
)
def test_the_window_is_that_of_transformers(config: dict[str, Any], window: int) -> None:
    assert {layer.window for layer in parse_hf_config(config).layers} == {window}


SLIDING, FULL = "sliding_attention", "full_attention"


@pytest.mark.parametrize(
    ("config", "windows"),
    [
        ({**QWEN2, "use_sliding_window": True, "sliding_window": 64, "max_window_layers": 3}, [0, 0, 0, 64]),
        (
            {**QWEN3, "use_sliding_window": True, "sliding_window": 64, "layer_types": [FULL, SLIDING] * 2},
            [0, 64, 0, 64],
        ),
        (GEMMA2, [512, 0, 512, 0]),
        ({**GEMMA2, "sliding_window": None}, [0, 0, 0, 0]),
        ({**GEMMA2, "layer_types": [FULL, FULL, SLIDING, FULL]}, [0, 0, 512, 0]),
        ({**GEMMA3, "sliding_window_pattern": 3}, [512, 512, 0, 512]),
        (GEMMA3, [512, 512, 512, 512]),
        ({**PHI3, "sliding_window": 2047}, [2047] * 4),
        (PHI3, [0] * 4),
    ],
)
def test_layers_have_windows_of_their_own(config: dict[str, Any], windows: list[int]) -> None:
    assert [layer.window for layer in parse_hf_config(config).layers] == windows


def test_what_tells_gemma_apart() -> None:
    gemma2, gemma3 = parse_hf_config(GEMMA2), parse_hf_config({**GEMMA3, "rope_local_base_freq": 5000.0})
    assert (gemma2.activation, gemma2.norm_offset, gemma2.output_norms, gemma2.qk_norm) == ("gelu_tanh", 1, True, False)
    assert (gemma2.attention_softcap, gemma2.logits_softcap, gemma2.attention_scale) == (50, 30, 256**-0.5)
    assert (gemma3.attention_softcap, gemma3.logits_softcap, gemma3.qk_norm) == (0, 0, True)
    assert gemma2.embedding_scale == gemma3.embedding_scale == 16
    assert gemma2.tied_embeddings
    assert [layer.rope.theta for layer in gemma3.layers] == [5000.0] * 4
    both = parse_hf_config({**GEMMA3, "sliding_window_pattern": 2, "rope_scaling": {"type": "linear", "factor": 8.0}})
    assert [(layer.rope.theta, layer.rope.factor) for layer in both.layers] == [(1e4, 1.0), (1e6, 8.0)] * 2


def test_which_layers_have_experts() -> None:
    mixtral = parse_hf_config({**MIXTRAL, "num_local_experts": 6, "num_experts_per_tok": 3})
    experts = ExpertsConfig(num_experts=6, num_chosen=3, intermediate_size=512, renormalise=True)
    assert [layer.experts for layer in mixtral.layers] == [experts] * 4
    sizes = {"num_experts": 9, "moe_intermediate_size": 64, "mlp_only_layers": [3]}
    qwen = parse_hf_config({**QWEN3_MOE, **sizes})
    experts = ExpertsConfig(num_experts=9, num_chosen=8, intermediate_size=64, renormalise=False)
    assert [layer.experts for layer in qwen.layers] == [experts, experts, experts, None]
    every_second = parse_hf_config({**QWEN3_MOE, "decoder_sparse_step": 2, "norm_topk_prob": True})
    assert [layer.experts is not None for layer in every_second.layers] == [False, True, False, True]
    assert every_second.layers[1].experts.renormalise


def test_what_tells_phi_apart() -> None:
    longrope = {"type": "su", "short_factor": [1.0] * 24, "long_factor": [2.0] * 24}
    lengths = {"max_position_embeddings": 131072, "original_max_position_embeddings": 4096}
    own_code = {"AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM"}  # that of transformers, under its own name
    partly = {"partial_rotary_factor": 0.75, "rope_scaling": longrope, **lengths, "auto_map": own_code}
    (rope,) = {layer.rope for layer in parse_hf_config({**PHI3, **partly}).layers}
    assert (rope.rope_type, rope.rotary_dim, rope.original_max_position) == ("longrope", 48, 4096)
    assert rope.long_factors == (2.0,) * 24
    assert rope.attention_factor == pytest.approx((1 + 5 / 12) ** 0.5)  # 2**17 is 2**5 times 2**12


def test_yarn_stretches_the_length_that_the_model_is_made_for() -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}
    assert parse_hf_config({**QWEN2, "rope_scaling": yarn}).max_model_len == 8192
    assert parse_hf_config({**QWEN2, "rope_scaling": yarn, "max_position_embeddings": 9000}).max_model_len == 9000


@pytest.mark.parametrize(
    ("generation", "bos", "eos"),
    [
        ({}, 1, (2,)),
        ({"eos_token_id": [7, 8], "bos_token_id": 3}, 3, (7, 8)),
        ({"eos_token_id": None}, 1, (2,)),
        ({"eos_token_id": 0}, 1, (0,)),
    ],
)
def test_the_ids_of_the_generation_config_win(generation: dict[str, Any], bos: int, eos: tuple[int, ...]) -> None:
    config = parse_hf_config({**LLAMA, "bos_token_id": 1, "eos_token_id": 2}, generation)
    assert (config.bos_token_id, config.eos_token_ids) == (bos, eos)


def test_ids_may_be_absent() -> None:
    config = parse_hf_config(QWEN2)
    assert (config.bos_token_id, config.eos_token_ids) == (None, ())


def test_keys_that_change_nothing_are_ignored() -> None:
    extra = {
        "initializer_range": 0.02,
        "rope_interleaved": False,
        "quantization_config": None,
        "transformers.js_config": {"dtype": "q4"},
        "partial_rotary_factor": 1.0,
        "num_experts": 0,
    }
    assert parse_hf_config({**LLAMA, **extra}) == parse_hf_config(LLAMA)


REFUSED = [
    (LLAMA, {"architectures": ["GemmaForCausalLM"], "model_type": "gemma"}, "model_type = 'gemma'"),
    (LLAMA, {"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss"}, "'gpt_oss' is not supported: .* sinks"),
    (LLAMA, {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3"}, "'gemma3' .* vision tower"),
    (LLAMA, {"architectures": ["CohereForCausalLM"], "model_type": "cohere"}, "model_type = 'cohere' is not supported"),
    (LLAMA, {"architectures": ["LlamaForSequenceClassification"]}, "LlamaForSequenceClassification"),
    (LLAMA, {"architectures": ["MistralForCausalLM"]}, "contradicts"),
    (LLAMA, {"architectures": None, "model_type": None}, "architectures and model_type are missing"),
    (LLAMA, {"auto_map": {"AutoModelForCausalLM": "modeling_own.Own"}}, "modeling_own.Own"),
    (LLAMA, {"hidden_act": "gelu"}, "hidden_act = 'gelu' is not supported, only 'silu'"),
    (LLAMA, {"quantization_config": {"quant_method": "gptq"}}, "quantization_config.*gptq"),
    (LLAMA, {"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5"),
    (LLAMA, {"rope_interleaved": True}, "rope_interleaved = True"),
    (LLAMA, {"num_local_experts": 8}, "num_local_experts = 8"),
    (LLAMA, {"head_dim": 32}, "head size 32"),
    (LLAMA, {"max_position_embeddings": 2**25}, "max_model_len must be at most 16777216, got 33554432"),
    (LLAMA, {"num_attention_heads": 3, "hidden_size": 192}, "multiple of the 2 KV heads, got 3"),
    (LLAMA, {"hidden_size": 257}, "hidden_size 257 is not a multiple of num_attention_heads 4"),
    (LLAMA, {"hidden_size": None}, "hidden_size is missing"),
    (LLAMA, {"vocab_size": "1000"}, "vocab_size must be an integer of at least 1, got '1000'"),
    (LLAMA, {"num_hidden_layers": 0}, "num_hidden_layers must be an integer of at least 1, got 0"),
    (LLAMA, {"num_hidden_layers": 10**12}, "num_hidden_layers must be at most 10000, got 1000000000000"),
    (LLAMA, {"rms_norm_eps": -1e-6}, "rms_norm_eps must be a number above 0"),
    (LLAMA, {"tie_word_embeddings": "yes"}, "tie_word_embeddings must be true or false, got 'yes'"),
    (LLAMA, {"eos_token_id": [2, "x"]}, "eos_token_id.*'x'"),
    (LLAMA, {"sliding_window": 512}, "sliding_window = 512"),
    (LLAMA, {"layer_types": ["sliding_attention"] * 4}, "no window is set"),
    (MISTRAL, {"attention_bias": True}, "attention_bias = True"),
    (MISTRAL, {"sliding_window": 64, "layer_types": ["full_attention"] * 4}, "sliding_window 64 .* all 4 .* in 0"),
    (QWEN2, {"mlp_bias": True}, "mlp_bias = True"),
    (MIXTRAL, {"num_local_experts": 2, "num_experts_per_tok": 3}, r"must choose 1 \.\. 2 experts, got 3"),
    (MIXTRAL, {"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
    (QWEN3_MOE, {"shared_expert_intermediate_size": 64}, "shared_expert_intermediate_size = 64"),
    (QWEN3_MOE, {"decoder_sparse_step": 0}, "decoder_sparse_step must be an integer of at least 1, got 0"),
    (QWEN3_MOE, {"mlp_only_layers": 3}, "mlp_only_layers must be a list of layer numbers, got 3"),
    (GEMMA2, {"hidden_activation": "gelu"}, "hidden_activation = 'gelu'"),
    (GEMMA2, {"use_bidirectional_attention": True}, "use_bidirectional_attention = True"),
    (GEMMA3, {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping = 50.0"),
    (GEMMA3, {"rope_parameters": {"rope_type": "default"}}, "rope_parameters = .*sliding_attention"),
    (PHI3, {"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_type = 'linear'"),
    (PHI3, {"rope_scaling": {"type": "longrope", "short_factor": [1.0]}}, "short_factor must list 32 numbers.*1 of"),
    (PHI3, {"rope_scaling": {"type": "longrope", "short_factor": ["x"] * 32}}, "short_factor must be a number"),
    (PHI3, {"partial_rotary_factor": 0.33}, "partial_rotary_factor 0.33 of the head size 64 .* got 21"),
    (QWEN3, {"layer_types": ["full_attention", "linear_attention"] * 2}, "layer_types.*linear_attention"),
    (QWEN3, {"layer_types": ["full_attention"]}, "for each of 4 layers"),
    (QWEN2, {"rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}}, "rope_type = 'mrope'"),
    (QWEN2, {"rope_scaling": {"type": "default", "mrope_section": [16, 24, 24]}}, "mrope_section = "),
    (LLAMA, {"rope_theta": 1.0}, "theta must be above 1, got 1.0"),
    (LLAMA, {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_type = 'dynamic'"),
    (LLAMA, {"rope_scaling": {"type": "linear"}}, "factor is missing"),
    (LLAMA, {"rope_scaling": {"type": "linear", "factor": -2}}, "factor must be a number above 0, got -2"),
    (LLAMA, {"rope_scaling": {"type": "yarn", "factor": 2.0, "finetuned": True}}, "finetuned = True is unknown"),
    (LLAMA, {"rope_parameters": {"partial_rotary_factor": 0.25}}, "partial_rotary_factor = 0.25"),
    (LLAMA, {"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, "full_attention = "),
    (
        LLAMA,
        {"rope_scaling": {"type": "llama3", "factor": 2.0, "low_freq_factor": 4.0, "high_freq_factor": 4.0}},
        "high_freq_factor must be above 4.0, got 4.0",
    ),
]


@pytest.mark.parametrize(("base", "change", "message"), REFUSED, ids=[case[2] for case in REFUSED])
def test_what_is_not_computed_is_refused_by_name(base: dict[str, Any], change: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        parse_hf_config({**base, **change})


@pytest.mark.parametrize(
    "name",
    ["hidden_size", "intermediate_size", "num_q_heads", "num_kv_heads", "vocab_size", "max_model_len"],
)
def test_sizes_are_at_least_one(name: str) -> None:
    with pytest.raises(UnsupportedModelError, match=f"{name} must be at least 1, got 0"):
        dataclasses.replace(parse_hf_config(LLAMA), **{name: 0})


_STRANGE: tuple[Any, ...] = (
    *(True, False, 0, 1, 3, -1, 2**31 - 1, 10**400, 1e308, float("nan"), float("inf"), -0.5, "", "x", [], [1], [[]]),
    *(["full_attention"] * 4, ["sliding_attention"] * 4, {}, {"a": 1}, {"rope_type": ["x"]}, [{"a": 1}]),
    *({"full_attention": None, "sliding_attention": 1}, {"rope_type": "yarn", "factor": 1e308}),
    *({"rope_type": "yarn", "factor": 2, "mscale": "x"}, {"AutoModelForCausalLM": 1}),
)
_KEYS_BEYOND_BASE = (
    *("architectures", "model_type", "auto_map", "bos_token_id", "eos_token_id", "head_dim", "rope_scaling"),
    *("rope_parameters", "layer_types", "sliding_window", "rope_local_base_freq", "query_pre_attn_scalar"),
    *("final_logit_softcapping", "partial_rotary_factor", "original_max_position_embeddings", "num_local_experts"),
    *("num_experts", "num_experts_per_tok", "mlp_only_layers", "decoder_sparse_step", "attention_bias"),
)


@pytest.mark.parametrize(
    "base",
    [LLAMA, MISTRAL, MIXTRAL, QWEN2, QWEN3, QWEN3_MOE, GEMMA2, GEMMA3, PHI3],
    ids=lambda base: base["model_type"],
)
def test_any_value_of_any_key_is_read_or_refused(base: dict[str, Any]) -> None:
    parse_hf_config(base)
    for key in {**BASE, **dict.fromkeys(_KEYS_BEYOND_BASE)}:
        for value in _STRANGE:
            with contextlib.suppress(UnsupportedModelError):
                expected_tensors(parse_hf_config({**base, key: value}))


def test_gemma3_scales_rope_parameters_by_rope_scaling() -> None:
    """Where there are both, as in transformers."""
    parameters = {"full_attention": {"rope_theta": 5e5}, "sliding_attention": {"rope_theta": 2e4}}
    scaling = {"rope_type": "linear", "factor": 8.0}
    config = {**GEMMA3, "num_hidden_layers": 6, "rope_parameters": parameters, "rope_scaling": scaling}
    layers = parse_hf_config(config).layers
    assert layers[0].rope == RopeConfig(rope_type="default", theta=2e4)
    assert layers[5].rope == RopeConfig(rope_type="linear", theta=5e5, factor=8.0)
    reference = Gemma3TextConfig(**config).rope_parameters
    assert reference["full_attention"] == {"rope_theta": 5e5, **scaling}


def test_a_longrope_of_a_single_position() -> None:
    factors = [1.0] * 32
    rope = {"rope_type": "longrope", "short_factor": factors, "long_factor": factors}
    with pytest.raises(UnsupportedModelError, match="original_max_position_embeddings must be at least 2, got 1"):
        parse_hf_config({**PHI3, "rope_scaling": rope, "original_max_position_embeddings": 1})


def test_a_folder_is_read_with_its_generation_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [5]}))
    assert read_model_config(tmp_path).eos_token_ids == (5,)


@pytest.mark.parametrize(
    ("content", "message"),
    [("{", "not valid JSON"), ("[1]", "JSON object, got list"), ("[" * 100_000, "nested too deeply")],
)
def test_a_damaged_config_json_is_named(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(WeightsError, match=f"config.json.*{message}"):
        read_model_config(tmp_path)


def test_a_pipe_by_the_name_of_config_json_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(WeightsError, match=r"config\.json is not a file"):
        read_model_config(tmp_path)


def test_a_folder_without_config_json_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"config\.json does not exist"):
        read_model_config(tmp_path)
