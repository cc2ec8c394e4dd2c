"""A GGUF file gives the same model as the safetensors it was made from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from cudaprefill import ops
from cudaprefill.models import (
    WeightsError,
    load_model,
    read_model_config,
)
from cudaprefill.models.block_matrix import BlockMatrix
from cudaprefill.models.gguf import GgufFile
from tests.models.gguf_files import write_gguf
from tests.models.paged import PagedRunner
from tests.models.tiny import ROPE, random_tokens, reference_logits, save_tiny_model, tiny_model

PROMPT = random_tokens(50)
TOLERANCE = 1e-4
Quantisation = gguf.GGMLQuantizationType

# As every Gemma 3 is: five layers of six with a window, and an embedding of theirs.
GEMMA3 = {"num_hidden_layers": 7, "sliding_window_pattern": 6}

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama 32/8": ("llama", {"hidden_size": 128, "num_attention_heads": 32, "num_key_value_heads": 8}),
    "llama, biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, tied": ("llama", {"tie_word_embeddings": True}),
    "mistral": ("mistral", {}),
    "qwen2": ("qwen2", {}),
    "qwen3, tied": ("qwen3", {"tie_word_embeddings": True}),
    "mixtral": ("mixtral", {}),
    "qwen3_moe": ("qwen3_moe", {"norm_topk_prob": True, "mlp_only_layers": []}),
    "gemma2": ("gemma2", {"query_pre_attn_scalar": 64, "tie_word_embeddings": True}),
    "gemma3": ("gemma3_text", {**GEMMA3, "query_pre_attn_scalar": 64, "tie_word_embeddings": True}),
    "phi3": ("phi3", {}),
}


def logits_of(path: Path, linear_math: str = "float32", **options: Any) -> torch.Tensor:
    return PagedRunner(load_model(path, linear_math=linear_math, **options)).step(chunks={"a": PROMPT})["a"]


@pytest.mark.parametrize("name", MODELS)
def test_gguf_and_safetensors_give_the_same_logits(tmp_path: Path, name: str) -> None:
    family, overrides = MODELS[name]
    reference = save_tiny_model(tmp_path, family, **overrides)
    write_gguf(tmp_path / "model.gguf", reference)
    logits = logits_of(tmp_path / "model.gguf")
    torch.testing.assert_close(logits, logits_of(tmp_path), rtol=0, atol=1e-6)
    torch.testing.assert_close(logits, reference_logits(reference, PROMPT), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("quantisation", ["F16", "BF16", "Q8_0", "Q5_1", "Q4_0", "Q4_1"])
def test_quantised_matrices_are_those_that_the_file_says(tmp_path: Path, quantisation: str) -> None:
    """The reference computes in float32 with each matrix quantised and dequantised in its Hugging Face row order."""
    kind = Quantisation[quantisation]
    reference = tiny_model("llama", intermediate_size=128)
    write_gguf(tmp_path / "model.gguf", reference, kind)
    expected = quantised_logits(reference, lambda name: kind)
    for dtype in ("auto", "float32"):  # in blocks, and dequantised
        logits = logits_of(tmp_path / "model.gguf", dtype=dtype)
        torch.testing.assert_close(logits, expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(
    ("kinds", "in_blocks"),
    [
        ({"": Quantisation.Q4_1, "attn_v": Quantisation.Q8_0}, {"qkv", "o", "gate_up", "down"}),
        ({"": Quantisation.Q4_0, "ffn_up": Quantisation.F16, "attn_output": Quantisation.Q5_0}, {"qkv", "down"}),
    ],
)
def test_matrices_that_are_fused_may_be_stored_in_different_formats(
    tmp_path: Path, kinds: dict[str, Quantisation], in_blocks: set[str]
) -> None:
    reference = tiny_model("llama", intermediate_size=128, attention_bias=True)
    write_gguf(tmp_path / "model.gguf", reference, kinds)
    parts = {"attn_v": "v_proj", "ffn_up": "up_proj", "attn_output": "o_proj"}
    kind_of = {parts[part]: kind for part, kind in kinds.items() if part}
    expected = quantised_logits(reference, lambda name: kind_of.get(name.split(".")[-2], kinds[""]))
    decoder = load_model(tmp_path / "model.gguf", linear_math="float32")
    layer = decoder.weights.layers[0]
    matrices = {name: getattr(layer, name) for name in ("qkv", "o", "gate_up", "down")}
    assert {name for name, matrix in matrices.items() if isinstance(matrix, BlockMatrix)} == in_blocks
    logits = PagedRunner(decoder).step(chunks={"a": PROMPT})["a"]
    torch.testing.assert_close(logits, expected, rtol=0, atol=TOLERANCE)


def test_blocks_take_the_memory_that_the_file_takes(tmp_path: Path) -> None:
    """But for the vocabulary, whose rows are rounded up to groups."""
    reference = tiny_model("llama", intermediate_size=128)
    write_gguf(tmp_path / "model.gguf", reference, Quantisation.Q4_1)
    decoder = load_model(tmp_path / "model.gguf")
    matrices = [decoder.weights.embedding, decoder.weights.lm_head]
    for layer in decoder.weights.layers:
        matrices += [layer.qkv, layer.o, layer.gate_up, layer.down]
    stored = [t.rows for t in GgufFile(tmp_path / "model.gguf").tensors.values() if len(t.shape) == 2]
    in_groups = sum(-(-len(rows) // ops.GROUP_ROWS) * ops.GROUP_ROWS * rows.shape[1] for rows in stored)
    assert sum(matrix.num_bytes for matrix in matrices if isinstance(matrix, BlockMatrix)) == in_groups
    assert in_groups < 1.02 * sum(rows.nbytes for rows in stored)
    assert decoder.weight_format == "Q4_1"


def test_rounded_activations_give_nearly_the_same_logits(tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf", tiny_model("llama", intermediate_size=128), Quantisation.Q4_1)
    exact, nearly_exact, rounded = (
        logits_of(tmp_path / "model.gguf", linear_math=math) for math in ("float32", "int16", "int8")
    )
    assert 1e-6 < (nearly_exact - exact).norm() / exact.norm() < 3e-4
    assert 1e-4 < (rounded - exact).norm() / exact.norm() < 0.05
    assert load_model(tmp_path / "model.gguf").linear_math == "int16"
    assert load_model(tmp_path / "model.gguf", linear_math="int8").linear_math == "int8"
    for math, bits in (("int8", 16), ("int16", 16), ("float32", 32)):
        lm_head = load_model(tmp_path / "model.gguf", linear_math=math).weights.lm_head
        assert isinstance(lm_head, BlockMatrix)
        assert lm_head.activation_bits == bits
    assert load_model(tmp_path / "model.gguf", linear_math="float32").linear_math == "float32"
    assert load_model(tmp_path / "model.gguf", dtype="float32").linear_math == "float32"


def test_integers_are_refused_where_weights_are_not_in_blocks(tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf", save_tiny_model(tmp_path, "llama", intermediate_size=128), Quantisation.Q4_1)
    wrong = "linear_math is int8, but weights are not kept in blocks: "
    with pytest.raises(ValueError, match=f"{wrong}.* with dtype auto on cpu"):
        load_model(tmp_path, linear_math="int8")
    with pytest.raises(ValueError, match=f"{wrong}model.gguf with dtype bfloat16 on cpu"):
        load_model(tmp_path / "model.gguf", dtype="bfloat16", linear_math="int8")
    with pytest.raises(ValueError, match="linear_math must be one of auto, float32, int16, int8, got 'int4'"):
        load_model(tmp_path, linear_math="int4")


def quantised_logits(reference: Any, kind_of: Callable[[str], Quantisation]) -> torch.Tensor:
    """Of the model with each matrix replaced by what its quantisation leaves of it."""
    with torch.no_grad():
        for name, weight in reference.named_parameters():
            if weight.dim() == 2:
                kind = kind_of(name)
                values = gguf.quants.dequantize(gguf.quants.quantize(weight.numpy(), kind), kind)
                weight.copy_(torch.from_numpy(values))
    return reference_logits(reference, PROMPT)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_values_are_rounded_as_torch_rounds(tmp_path: Path, dtype: torch.dtype) -> None:
    """Among them ties between two neighbours of each kind, infinities, NaN, and what is too large or too small."""
    values = torch.randint(-(2**31), 2**31, (96 * 96,), generator=torch.Generator().manual_seed(0), dtype=torch.int32)
    values[:4096] = (values[:4096] & ~0xFFFF) | 0x8000
    values[4096:6000] &= ~0xFFF
    reference = tiny_model("llama", vocab_size=96, tie_word_embeddings=True)
    with torch.no_grad():
        reference.get_input_embeddings().weight.copy_(values.view(torch.float32).view(96, 96))
    write_gguf(tmp_path / "model.gguf", reference)
    embedding = load_model(tmp_path / "model.gguf", dtype=str(dtype).removeprefix("torch.")).weights.embedding
    expected = values.view(torch.float32).view(96, 96).to(dtype)
    torch.testing.assert_close(embedding, expected, rtol=0, atol=0, equal_nan=True)


def test_runs_of_rows_come_together_in_order(tmp_path: Path) -> None:
    """The embedding is large enough to be dequantised in several runs by several threads."""
    reference = tiny_model("llama", vocab_size=20_011, tie_word_embeddings=True)
    write_gguf(tmp_path / "model.gguf", reference)
    torch.set_num_threads(3)
    embedding = load_model(tmp_path / "model.gguf").weights.embedding
    torch.set_num_threads(1)
    assert torch.equal(embedding, reference.get_input_embeddings().weight)


def test_llama3_frequencies_come_from_rope_freqs(tmp_path: Path) -> None:
    reference = tiny_model("llama", rope_parameters=dict(ROPE["llama3"]))
    plain, _ = LlamaRotaryEmbedding.compute_default_rope_parameters(reference.config)
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](reference.config)
    assert not torch.equal(plain, scaled)
    write_gguf(tmp_path / "model.gguf", reference, rope_factors=(plain / scaled).numpy())
    expected = reference_logits(reference, PROMPT)
    torch.testing.assert_close(logits_of(tmp_path / "model.gguf"), expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("rope_type", ["linear", "yarn"])
def test_scaled_rope_comes_from_the_metadata(tmp_path: Path, rope_type: str) -> None:
    reference = tiny_model("qwen2", rope_parameters=dict(ROPE[rope_type]))

    def scaling(writer: gguf.GGUFWriter) -> None:
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope_type))
        writer.add_rope_scaling_factor(4.0)
        writer.add_rope_scaling_orig_ctx_len(64)

    write_gguf(tmp_path / "model.gguf", reference, metadata=scaling)
    expected = reference_logits(reference, PROMPT)
    torch.testing.assert_close(logits_of(tmp_path / "model.gguf"), expected, rtol=0, atol=TOLERANCE)


def test_a_longrope_comes_from_two_tensors(tmp_path: Path) -> None:
    rope = {**ROPE["longrope"], "partial_rotary_factor": 0.75}
    rope |= {name: rope[name][:24] for name in ("short_factor", "long_factor")}
    reference = tiny_model("phi3", rope_parameters=rope, original_max_position_embeddings=64)

    def scaling(writer: gguf.GGUFWriter) -> None:
        writer.add_rope_dimension_count(48)
        writer.add_rope_scaling_orig_ctx_len(64)
        for kind in ("short", "long"):
            writer.add_tensor(f"rope_factors_{kind}.weight", np.array(rope[f"{kind}_factor"], np.float32))

    write_gguf(tmp_path / "model.gguf", reference, metadata=scaling)
    tokens = random_tokens(75)
    for length, max_model_len in ((50, 64), (75, 256)):
        runner = PagedRunner(load_model(tmp_path / "model.gguf", max_model_len=max_model_len))
        logits = runner.step(chunks={"a": tokens[:length]})["a"]
        torch.testing.assert_close(logits, reference_logits(reference, tokens[:length]), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("kind", [Quantisation.Q4_0, Quantisation.Q8_0])
def test_experts_stay_in_blocks(tmp_path: Path, kind: Quantisation) -> None:
    reference = tiny_model("mixtral", intermediate_size=128)
    write_gguf(tmp_path / "model.gguf", reference, kind)
    with torch.no_grad():
        for name, weight in reference.named_parameters():
            if weight.dim() >= 2 and "mlp.gate." not in name:
                values = gguf.quants.dequantize(gguf.quants.quantize(weight.numpy(), kind), kind)
                weight.copy_(torch.from_numpy(values))
    decoder = load_model(tmp_path / "model.gguf", linear_math="float32")
    assert isinstance(decoder.weights.layers[0].gate_up, BlockMatrix)
    expected = reference_logits(reference, PROMPT)
    logits = PagedRunner(decoder).step(chunks={"a": PROMPT})["a"]
    torch.testing.assert_close(logits, expected, rtol=0, atol=TOLERANCE)
    as_floats = logits_of(tmp_path / "model.gguf", dtype="float32")
    torch.testing.assert_close(as_floats, expected, rtol=0, atol=TOLERANCE)


def test_experts_in_several_formats_are_dequantised(tmp_path: Path) -> None:
    reference = tiny_model("mixtral", intermediate_size=128)
    kinds = {"": Quantisation.Q8_0, "ffn_up_exps": Quantisation.Q4_0}
    write_gguf(tmp_path / "model.gguf", reference, kinds)
    decoder = load_model(tmp_path / "model.gguf", linear_math="float32")
    layer = decoder.weights.layers[0]
    assert isinstance(layer.qkv, BlockMatrix)
    assert isinstance(layer.gate_up, torch.Tensor)
    assert isinstance(layer.down, torch.Tensor)
    logits = PagedRunner(decoder).step(chunks={"a": PROMPT})["a"]
    torch.testing.assert_close(logits, logits_of(tmp_path / "model.gguf", dtype="float32"), rtol=0, atol=TOLERANCE)


def test_a_missing_expert_is_named_as_in_the_file(tmp_path: Path) -> None:
    model = tiny_model("mixtral")
    model.config.num_local_experts = 6
    write_gguf(tmp_path / "model.gguf", model)
    with pytest.raises(WeightsError, match=r"'blk\.0\.ffn_gate_exps\.weight'"):
        load_model(tmp_path / "model.gguf")


def test_a_window_comes_from_the_metadata(tmp_path: Path) -> None:
    reference = tiny_model("mistral", sliding_window=20)
    write_gguf(tmp_path / "model.gguf", reference, metadata=lambda writer: writer.add_sliding_window(20))
    expected = reference_logits(reference, PROMPT)
    torch.testing.assert_close(logits_of(tmp_path / "model.gguf"), expected, rtol=0, atol=TOLERANCE)


def test_metadata_becomes_the_configuration(tmp_path: Path) -> None:
    def ids(writer: gguf.GGUFWriter) -> None:
        writer.add_eot_token_id(9)
        writer.add_uint32("tokenizer.ggml.eom_token_id", 2)

    save_tiny_model(tmp_path, "qwen3")
    write_gguf(tmp_path / "model.gguf", tiny_model("qwen3"), metadata=ids)
    config, same = read_model_config(tmp_path / "model.gguf"), read_model_config(tmp_path)
    assert config.eos_token_ids == (2, 9)
    assert config.bos_token_id == 1
    assert config.rms_norm_eps == pytest.approx(same.rms_norm_eps)
    names = set(vars(same)) - {"eos_token_ids", "rms_norm_eps"}
    assert {name: getattr(config, name) for name in names} == {name: getattr(same, name) for name in names}


def test_metadata_of_every_type_is_read(tmp_path: Path) -> None:
    def everything(writer: gguf.GGUFWriter) -> None:
        writer.add_uint8("x.u8", 200)
        writer.add_int8("x.i8", -7)
        writer.add_uint16("x.u16", 60_000)
        writer.add_int16("x.i16", -300)
        writer.add_int32("x.i32", -70_000)
        writer.add_uint64("x.u64", 2**63)
        writer.add_int64("x.i64", -(2**40))
        writer.add_float64("x.f64", 0.1)
        writer.add_bool("x.bool", True)
        writer.add_string("x.text", "é😀")
        writer.add_array("x.texts", ["", "b"])
        writer.add_array("x.numbers", [1, 2, 3])

    write_gguf(tmp_path / "model.gguf", tiny_model("llama"), metadata=everything)
    metadata = GgufFile(tmp_path / "model.gguf").metadata
    assert {key: value for key, value in metadata.items() if key.startswith("x.")} == {
        "x.u8": 200,
        "x.i8": -7,
        "x.u16": 60_000,
        "x.i16": -300,
        "x.i32": -70_000,
        "x.u64": 2**63,
        "x.i64": -(2**40),
        "x.f64": 0.1,
        "x.bool": True,
        "x.text": "é😀",
        "x.texts": ["", "b"],
        "x.numbers": [1, 2, 3],
    }
